// What grew from one profile to another: the sections that the text has, one below the other.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;

  memprof.start(({ sections }) => {
    const main = document.getElementById("main");
    for (const data of sections) {
      main.append(
        el("section", {}, data.title && el("h2", {}, data.title), memprof.table.section(data)),
      );
    }
  });
})((globalThis.memprof ??= {}));
