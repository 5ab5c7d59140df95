// Tables as elements.py describes them: sorted by their headings, a bounded number of rows at a time;
// at phone width every cell stands after its column's name.

/** @type {(cell: Cell | undefined) => string | number} */
const keyOf = (cell) => (Array.isArray(cell) ? cell[0] : (cell ?? "-"));

/** In the order of a column, what is missing last. @type {(column: number, down: boolean) => (a: Cell[], b: Cell[]) => number} */
function byColumn(column, down) {
  return (a, b) => {
    const [x, y] = [keyOf(a[column]), keyOf(b[column])];
    if (x === "-" || y === "-") return Number(x === "-") - Number(y === "-");
    const up = typeof x === "number" ? x - Number(y) : x.localeCompare(String(y));
    return down ? -up : up;
  };
}

/** A table; with `pick`, rows can be chosen. @type {(data: DataTable, limit?: number, pick?: (i: number) => void) => HTMLElement} */
function table({ title, captioned, fit, columns, rows, foot }, limit = 12, pick) {
  let [shown, sorted, down] = [limit, -1, false];
  const body = el("tbody");
  const more = el("p.table-more");
  const heads = columns.map(({ title: name, class: className, help, sorted: canSort }, i) => {
    const press = el("button.sort", { type: "button", click: () => sortBy(i) }, name);
    return el("th", { scope: "col", class: className, title: help }, canSort ? press : name);
  });

  function sortBy(/** @type {number} */ i) {
    down = sorted === i ? !down : columns[i].class.startsWith("num");
    sorted = i;
    for (const head of heads) head.ariaSort = null;
    heads[i].ariaSort = down ? "descending" : "ascending";
    draw();
  }

  function line(/** @type {Cell[]} */ row) {
    const cells = row.map((cell, i) => {
      const children = Array.isArray(cell) ? cell.slice(1).map(build) : cell;
      return el("td", { class: columns[i].class, "data-label": columns[i].title }, children);
    });
    if (!pick || !rows.includes(row)) return el("tr", {}, cells);
    const click = () => pick(rows.indexOf(row));
    const keydown = (/** @type {KeyboardEvent} */ event) => onKey(event, { Enter: click, " ": click });
    return el("tr.pickable", { tabindex: 0, click, keydown }, cells);
  }

  function draw() {
    const ordered = sorted >= 0 ? rows.toSorted(byColumn(sorted, down)) : rows;
    fill(body, ordered.slice(0, shown).map(line));
    const next = Math.min(rows.length - shown, Math.max(limit * 4, 50));
    const grow = () => {
      shown += next;
      draw();
    };
    const text = `Show ${grouped(next)} more of ${grouped(rows.length)}`;
    fill(more, next > 0 && button(text, grow));
  }

  draw();
  return el(
    "div.table-wrap",
    {},
    el(
      fit ? "table.data.fit" : "table.data",
      {},
      el("caption", { class: captioned ? null : "visually-hidden" }, title),
      el("thead", {}, el("tr", {}, heads)),
      body,
      foot.length > 0 && el("tfoot", {}, foot.map(line)),
    ),
    more,
  );
}

// Cells of the tables that a page fills itself

/** @type {(n: number) => Cell} */
const bytesCell = (n) => [n, el("span", { title: exactBytes(n) }, bytes(n))];
/** @type {(n: number, whole: number) => Cell} */
const shareCell = (n, whole) => [
  n,
  el("span.bar", { style: { "--bar": `${(100 * n) / (whole || 1)}%` } }, share(n, whole)),
];

/** A category with its colour; other names as they are. @type {(name: string) => Child[]} */
const named = (name) => (STACK.includes(name) ? [categorySwatch(name), words(name)] : [name]);

/** A name and what stands in smaller type below it. @type {(name: string, below: (string | null | undefined)[]) => Cell} */
function nameCell(name, below) {
  const parts = below.filter((part) => part).map((part, i) => [i > 0 && " · ", named(String(part))]);
  return [name, el("span.code", {}, named(name)), parts.length > 0 && el("div.dim.code", {}, parts)];
}
