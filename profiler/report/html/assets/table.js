// Sections and tables as Python describes them (profiler/report/section.py): numbers to the right,
// sortable, a bounded number of rows at a time, and at phone width one block a row with every cell
// under its column's name. Nothing here knows what a table is about.

const NUMBERS = new Set("bytes change count times ns share figure address".split(" "));
const NARROW_PAGE = matchMedia("(max-width: 720px)");
const MOST_LINES = 50;
const NOTES = { warn: "p.notice", error: "p.notice.error" };

/** How a page draws the interactive views that sections name. */
const views = { draw: null };

/** Numbers by the unit of their column, others are counts; times are ns since 1970, in UTC. */
const IN_WORDS = {
  bytes,
  change: (value) => (value > 0 ? `+${bytes(value)}` : bytes(value)),
  ns,
  share: (value, { whole }) => share(value, whole),
  address: (value) => formatAddress(value),
  time: (value) => new Date(value / 1e6).toISOString().slice(0, 23).replace("T", " "),
};

function cellText(column, value) {
  if (missing(value)) return value === "" ? "" : "-";
  if (Array.isArray(value)) return `${value[0]}:${value[1]}`;
  if (typeof value === "string") return column.unit === "category" ? words(value) : value;
  return (IN_WORDS[column.unit] ?? count)(value, column);
}

/** A cell as what stands in a row: bytes with all digits on hover, shares as bars. */
function showCell(column, value) {
  const said = cellText(column, value);
  // In a foot, words may stand where a number would.
  if (missing(value) || (typeof value === "string" && NUMBERS.has(column.unit))) return said;
  switch (column.unit) {
    case "bytes":
    case "change":
      return el("span", { title: exactBytes(value) }, said);
    case "share": {
      const percent = column.whole ? Math.min(100, (100 * value) / column.whole) : 0;
      return el("span.bar", { style: { "--bar": `${percent}%` } }, said);
    }
    case "category":
      return [categorySwatch(value), said];
    case "time":
      return el("span.num.nowrap", {}, said);
    case "path":
      // Of a long one the end: the file name says most.
      return el("span.code", { title: said }, said.length > 36 ? `…${said.slice(-35)}` : said);
    case "frame":
      if (!Array.isArray(value)) return said;
      return [value[3] && el("span.code", {}, value[3]), el("div.dim.code", {}, said)];
    case "code":
      return el("span.code", {}, said);
    default:
      return said;
  }
}

/** Columns with those that stand below them: [column, index, [[column, index], …]]. */
function withBelow(columns) {
  const out = [];
  columns.forEach((column, i) => {
    if (column.below) out.at(-1)[2].push([column, i]);
    else out.push([column, i, []]);
  });
  return out;
}

/**
 * A table of Python's (Table.plain() in section.py). Options: `title` for screen readers, where there
 * is no caption; `onPick(cells, which)` makes rows buttons, and `isPicked(cells)` says which one is
 * pressed; `rows` and `foot` instead of the table's; `limit`, rows shown until more are asked for,
 * 12 by default, at phone width 6 at most.
 */
function table(data, options = {}) {
  if (data.lines) return listOf(data);
  const { rows = data.rows, foot = data.foot } = options;
  if (!rows.length && !foot.length) return data.empty ? el("p.empty", {}, data.empty) : "";
  const groups = withBelow(data.columns);
  const main = groups.find(([c, , below]) => c.fold || below.length)?.[0];
  const name = groups.find(([c]) => !NUMBERS.has(c.unit))?.[0];
  const wide = main ?? name;
  const limit = Math.min(options.limit ?? 12, NARROW_PAGE.matches ? 6 : Infinity);
  const all = rows.map((row, i) => ({ row, i, depth: data.depth[i] ?? 0 }));
  let chosen = all;
  let sorted = null;
  let shown = limit;
  const body = el("tbody");
  const heads = groups.map(([column, i]) => head(column, i));
  const more = el("p.table-more");
  const feet = foot.map((cells) => el("tr", {}, groups.map(cell(cells, 0))));
  draw();
  return el(
    "div.table-wrap",
    {},
    data.filtered !== null && filters(),
    el(
      main ? "table.data" : "table.data.fit",
      {},
      el("caption", { class: !data.caption && "visually-hidden" }, data.caption || options.title),
      el("thead", {}, el("tr", {}, heads)),
      body,
      feet.length > 0 && el("tfoot", {}, feet),
    ),
    more,
  );

  function classes(column) {
    return `${NUMBERS.has(column.unit) ? "num" : ""} ${column === wide ? "wide" : ""}`;
  }

  function head(column, i) {
    const said = heading(column.title);
    const properties = { scope: "col", class: classes(column), title: column.help || null };
    if (column.unit === "figure") return el("th", properties, said);
    const press = button(said, () => sortBy(i), null, "button.sort");
    return el("th", { ...properties, "aria-sort": "none" }, press);
  }

  function sortBy(i) {
    const down = sorted?.column === i ? !sorted.down : NUMBERS.has(data.columns[i].unit);
    sorted = { column: i, down };
    draw();
    groups.forEach(([, column], at) => {
      if (heads[at].ariaSort === null) return;
      heads[at].ariaSort = column !== i ? "none" : down ? "descending" : "ascending";
    });
  }

  function order() {
    if (!sorted) return chosen;
    return [...chosen].sort((a, b) => {
      const [x, y] = [a.row[sorted.column], b.row[sorted.column]];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const up = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return sorted.down ? -up : up;
    });
  }

  function filters() {
    const column = data.columns[data.filtered];
    const counted = data.columns.findIndex((c) => c.unit === "count");
    const times = (found) => count(found.reduce((n, r) => n + r[counted], 0));
    const found = [...Map.groupBy(rows, (r) => r[data.filtered])];
    const choices = [["", `All ${count(rows.length)}`]];
    choices.push(...found.map(([value, of]) => [value, `${words(value)} ${times(of)}`]));
    const tabs = toggles(column.title, choices, (value) => {
      tabs.set(value);
      chosen = value ? all.filter(({ row }) => row[data.filtered] === value) : all;
      shown = limit;
      draw();
    });
    tabs.set("");
    return tabs.element;
  }

  function draw() {
    fill(body, order().slice(0, shown).map(line));
    const next = Math.min(chosen.length - shown, Math.max(limit * 4, 50));
    const press = () => {
      shown += next;
      draw();
    };
    const said = `Show ${count(next)} more of ${count(chosen.length)}`;
    fill(more, next > 0 && button(said, press, null, "button.quiet"));
  }

  function line({ row, i, depth }) {
    const cells = groups.map(cell(row, sorted ? 0 : depth));
    if (!options.onPick) return el("tr", {}, cells);
    const click = () => options.onPick(row, i);
    const keydown = (event) => onKey(event, { Enter: click, " ": click });
    const picked = options.isPicked?.(row) && "true";
    const properties = { tabindex: "0", "aria-selected": picked, on: { click, keydown } };
    return el("tr.pickable", properties, cells);
  }

  function cell(row, depth) {
    return ([column, i, below]) => {
      const said = below.filter(([, k]) => !missing(row[k]));
      const code = said.map(([, k]) => row[k]).find(Array.isArray)?.[3];
      const small = said.map(([c, k], n) => [
        n > 0 && " · ",
        c.unit === "category" && categorySwatch(row[k]),
        cellText(c, row[k]),
      ]);
      const tag = said.some(([c]) => c.unit === "code") ? "div.dim.code" : "div.dim";
      const parts = [showCell(column, row[i]), code && el("div.code", {}, code)];
      if (said.length) parts.push(el(tag, {}, small));
      const short = column !== wide && !NUMBERS.has(column.unit) && String(row[i]).length < 40;
      const indent = depth && column === name ? { "padding-left": `${depth * 18}px` } : null;
      const properties = { class: short ? "nowrap" : classes(column), style: indent };
      return el("td", { ...properties, data: { label: column.title } }, parts);
    };
  }
}

/** A table whose rows are items of a list. */
function listOf({ columns, rows, caption, folded, empty }) {
  if (!rows.length) return empty || caption ? el("p.help", {}, empty || caption) : el("div");
  const item = (row) => {
    const told = columns
      .map((c, i) => [c, row[i]])
      .filter(([c, value]) => !missing(value) && !(c.unit === "times" && value === 1))
      .map(([c, value]) => `${cellText(c, value)} ${NUMBERS.has(c.unit) ? c.title : ""}`.trim());
    const code = row.find(Array.isArray);
    return el("li", {}, told.join(" · "), code?.[3] && el("div.code", {}, code[3]));
  };
  const left = rows.length - MOST_LINES;
  const items = rows.slice(0, MOST_LINES).map(item);
  const list = el("ul.notes", {}, items, left > 0 && el("li", {}, `and ${count(left)} more`));
  if (folded) return el("details", {}, el("summary", {}, caption), list);
  return el("div", {}, caption && el("p.help", {}, caption), list);
}

/** What a section says, without its title: notes, tables, and the sections below it. */
function section(data, options = {}) {
  return el(
    "div",
    {},
    data.notes.map(([tone, said]) => el(NOTES[tone] ?? "p.help", {}, said)),
    data.view && views.draw(data.view),
    data.tables.map((t) => table(t, { title: data.title, ...options })),
    data.parts.map((part) => {
      const box = { warn: "div.notice", error: "div.notice.error" }[part.tone] ?? "div.part";
      const title = part.title && el(part.tone === "plain" ? "h3" : "strong", {}, part.title);
      return el(box, { id: part.id || null }, title, section(part));
    }),
  );
}
