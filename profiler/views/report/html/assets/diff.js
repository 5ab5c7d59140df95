// What grew from one profile to another: the sections that the text has, one below the other.

start((sections) => fill(byId("main"), sections.map(build)));
