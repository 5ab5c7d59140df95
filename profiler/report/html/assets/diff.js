// What grew from one profile to another: the sections that the text has, one below the other.

start(({ sections }) => {
  const drawn = (data) => el("section", {}, data.title && el("h2", {}, data.title), section(data));
  fill(document.getElementById("main"), sections.map(drawn));
});
