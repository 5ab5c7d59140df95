// Tables as elements.py describes them: sorted by their headings, a bounded number of rows at a time;
// at phone width every cell stands after its column's name.

const keyOf = (/** @type {Cell | undefined} */ cell) => (Array.isArray(cell) ? cell[0] : (cell ?? "-"));

/** In the order of a column, what is missing last. @type {(column: number, down: boolean) => (a: Cell[], b: Cell[]) => number} */
function byColumn(column, down) {
  return (a, b) => {
    const [x, y] = [keyOf(a[column]), keyOf(b[column])];
    if (x === "-" || y === "-") return Number(x === "-") - Number(y === "-");
    const up = typeof x === "number" ? x - Number(y) : x.localeCompare(String(y));
    return down ? -up : up;
  };
}

/** @type {(data: DataTable) => HTMLElement} */
function table({ title, captioned, fit, columns, rows, foot }) {
  let [shown, sorted, down] = [12, -1, false];
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
    const cells = row.map((cell) => (Array.isArray(cell) ? cell.slice(1).map(build) : cell));
    return el(
      "tr",
      {},
      cells.map((cell, i) => el("td", { class: columns[i].class, "data-label": columns[i].title }, cell)),
    );
  }

  function draw() {
    const ordered = sorted >= 0 ? rows.toSorted(byColumn(sorted, down)) : rows;
    fill(body, ordered.slice(0, shown).map(line));
    const next = Math.min(rows.length - shown, 50);
    const grow = () => {
      shown += next;
      draw();
    };
    const text = `Show ${grouped(next)} more of ${grouped(rows.length)}`;
    fill(more, next > 0 && el("button", { type: "button", click: grow }, text));
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

/** A category with its colour; other names as they are. */
const named = (/** @type {string} */ name) => (STACK.includes(name) ? [categorySwatch(name), words(name)] : [name]);

/** A name and what stands in smaller type below it; with `press`, the name is a button. @type {(name: string, below: (string | null | undefined)[], press?: () => void) => Cell} */
function nameCell(name, below, press) {
  const parts = below.filter((part) => part).map((part, i) => [i > 0 && " · ", named(String(part))]);
  const head = press
    ? el("button.code", { type: "button", click: press }, named(name))
    : el("span.code", {}, named(name));
  return [name, head, parts.length > 0 && el("div.dim.code", {}, parts)];
}
