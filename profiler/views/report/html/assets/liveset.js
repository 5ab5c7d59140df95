// The live set at the chosen instant as a table, and what a row of it is made of.

/** @type {Draw} */
function liveSet(state, root) {
  addTemplate(root, "live");
  const { templates, views: names } = state.profile;
  let view = names[0];
  radios(
    byId("live-views"),
    names.map((v) => [v, templates[v].columns[3].title]),
    (chosen) => {
      view = chosen;
      draw();
    },
  );

  /** The table that Python describes, with shares of all that is live. */
  function draw() {
    const { model, live, total } = state;
    const parts = model.breakdown(live, view);
    /** @type {(nbytes: number, n: number, name: Cell) => Cell[]} */
    const row = (nbytes, n, name) => [bytesCell(nbytes), shareCell(nbytes, total), [n, grouped(n)], name];
    const name = (/** @type {Part} */ part) => nameCell(part.key || "(root)", part.below, () => drawParts(part));
    const rows = parts.filter((p) => p.known).map((p) => row(p.nbytes, p.storages, name(p)));
    const foot = parts.filter((p) => !p.known).map((p) => row(p.nbytes, p.storages, `unattributed: ${p.key}`));
    if (!foot.length) foot.push(row(0, 0, "unattributed"));
    foot.push(row(total, sum([...live.values()]), "total"));
    const title = `Live set by ${templates[view].columns[3].title}`;
    fill(byId("live-table"), table({ ...templates[view], title, rows, foot }));
    byId("live-table").dataset.bytes = String(total);
    fill(byId("live-parts"), el("p.empty", {}, "Choose a name in the table to see what it is made of."));
  }

  /** The storages of a row, those alike together: where they come from, and why they are live. @type {(part: Part) => void} */
  function drawParts({ key, items }) {
    const { model, live } = state;
    /** @type {(item: number) => Cell[]} */
    const row = (item) => {
      const d = model.describe(item);
      const n = live.get(item) ?? 0;
      const where = d.location ?? `no source line: ${d.outside ?? "unknown"}`;
      return [
        bytesCell(n * d.nbytes),
        [n, grouped(n)],
        nameCell(d.fqn ?? d.node ?? d.owner ?? "scratch", [d.category, d.op]),
        [where, el("div.code", {}, d.code), el("div.dim.code", {}, where, d.function && ` in ${d.function}`)],
        nameCell(d.module ?? "-", [d.label]),
        d.hold,
      ];
    };
    const rows = items.map(row).sort(byColumn(0, true));
    const title = `What ${words(key || "(root)")} is made of`;
    fill(byId("live-parts"), table({ ...templates.parts, title, captioned: true, rows }));
  }

  state.onSelect(draw);
}
