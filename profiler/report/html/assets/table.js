// Sections and tables as Python describes them (profiler/report/section.py): numbers to the right,
// sortable, a bounded number of rows at a time, and at phone width one block a row with every cell
// under its column's name. Nothing here knows what a table is about.
(function (memprof) {
  "use strict";

  const { el, fill, words, button } = memprof.dom;
  const { format } = memprof;
  const narrow = matchMedia("(max-width: 720px)");
  const NUMBERS = new Set("bytes change count times ns share figure address".split(" "));
  const LINES = 50;

  const missing = (value) => value === null || value === undefined || value === "";

  /** Numbers by the unit of their column, others are counts. */
  const WORDS = {
    bytes: format.bytes,
    share: (value, { whole }) => format.share(value, whole),
    ns: format.ns,
    address: (value, { relative }) => format.address(value, relative),
    time: (value) => `${format.day(value)} ${format.clock(value)}`,
  };

  /** The text of a cell. */
  function text(column, value) {
    if (missing(value)) return value === "" ? "" : "-";
    if (Array.isArray(value)) return `${value[0]}:${value[1]}`;
    if (typeof value === "string") return column.unit === "category" ? words(value) : value;
    return (WORDS[column.unit] ?? format.count)(value, column);
  }

  /** A cell as what stands in a row: bytes with all digits on hover, shares as bars. */
  function show(column, value) {
    const said = text(column, value);
    // In a foot, words may stand where a number would.
    if (missing(value) || (typeof value === "string" && NUMBERS.has(column.unit))) return said;
    switch (column.unit) {
      case "bytes":
        return el("span", { title: format.exactBytes(value) }, said);
      case "share": {
        const percent = column.whole ? Math.min(100, (100 * value) / column.whole) : 0;
        return el("span.bar", { style: { "--bar": `${percent}%` } }, said);
      }
      case "category":
        return [swatch(value), said];
      case "time":
        return el("span.num", { title: said }, column.dated ? said : format.clock(value));
      case "path":
        return el("span.code", { title: said }, format.path(said, 36));
      case "frame":
        if (!Array.isArray(value)) return said;
        return [value[3] && el("span.code", {}, value[3]), el("div.dim.code", {}, said)];
      case "code":
        return el("span.code", {}, said);
      default:
        return said;
    }
  }

  /** The colour of a category, nothing for other words. */
  function swatch(category) {
    if (!memprof.STACK.includes(category)) return null;
    return memprof.dom.swatch(`var(${memprof.theme.variable(category)})`);
  }

  /** Columns with those that stand below them: [column, index, [[column, index], …]]. */
  function grouped(columns) {
    const out = [];
    columns.forEach((column, i) => {
      if (column.below && out.length) out[out.length - 1][2].push([column, i]);
      else out.push([column, i, []]);
    });
    return out;
  }

  /**
   * A table of Python's.
   *
   * @param {object} data see Table.plain() in section.py
   * @param {object} [options]
   * @param {string} [options.title] for screen readers, where there is no caption
   * @param {function(Array, number)} [options.onPick] makes rows buttons; gets the cells and which
   * @param {function(Array): boolean} [options.isPicked]
   * @param {Array} [options.rows] instead of the table's, and so `options.foot`
   * @param {number} [options.limit] rows shown until more are asked for, 12 by default,
   *   at phone width 6 at most
   */
  function table(data, options = {}) {
    const rows = options.rows ?? data.rows;
    const foot = options.foot ?? data.foot;
    if (data.lines) return lines(data);
    const root = el("div.table-wrap");
    if (!rows.length && !foot.length) {
      if (data.empty) root.append(el("p.empty", {}, data.empty));
      return root;
    }
    const groups = grouped(data.columns);
    const days = new Set();
    data.columns.forEach((c, i) => {
      if (c.unit === "time") for (const r of rows) days.add(format.day(r[i]));
      c.dated = days.size > 1;
    });
    const main = groups.find(([c, , below]) => c.fold || below.length)?.[0];
    const name = groups.find(([c]) => !NUMBERS.has(c.unit))?.[0];
    const limit = Math.min(options.limit ?? 12, narrow.matches ? 6 : Infinity);
    const all = rows.map((row, i) => ({ row, i, depth: data.depth[i] ?? 0 }));
    let chosen = all;
    let sorted = null;
    let shown = limit;
    const body = el("tbody");
    const heads = groups.map(([column, i]) => head(column, i));
    const more = el("p.table-more");
    if (data.filtered !== null) root.append(filters());
    root.append(
      el(
        "table.data",
        { class: main ? "data" : "data fit" },
        el("caption", { class: !data.caption && "visually-hidden" }, data.caption || options.title),
        el("thead", {}, el("tr", {}, heads)),
        body,
        foot.length > 0 && el("tfoot", {}, foot.map((cells) => el("tr", {}, groups.map(cell(cells, 0))))),
      ),
      more,
    );
    draw();
    return root;

    function classes(column) {
      const wide = column === (main ?? name);
      return [NUMBERS.has(column.unit) && "num", wide && "wide"].filter(Boolean).join(" ") || null;
    }

    function head(column, i) {
      const title = format.title(column.title);
      const properties = { scope: "col", class: classes(column), title: column.help || null };
      if (column.unit === "figure") return el("th", properties, title);
      const press = button(title, () => sortBy(i), null, "button.sort");
      return el("th", { ...properties, "aria-sort": "none", data: { column: i } }, press);
    }

    function sortBy(i) {
      const down = sorted?.column === i ? !sorted.down : NUMBERS.has(data.columns[i].unit);
      sorted = { column: i, down };
      draw();
      for (const h of heads) {
        const direction = Number(h.dataset.column) !== i ? "none" : down ? "descending" : "ascending";
        if (h.dataset.column) h.ariaSort = direction;
      }
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
      const how = data.columns.findIndex((c) => c.unit === "count");
      const count = (found) => format.count(found.reduce((n, r) => n + (how < 0 ? 1 : r[how]), 0));
      const found = [...Map.groupBy(rows, (r) => r[data.filtered])];
      const choices = [["", `All ${format.count(rows.length)}`]];
      choices.push(...found.map(([value, of]) => [value, `${words(value)} ${count(of)}`]));
      const tabs = memprof.toggles(column.title, choices, (value) => {
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
      const said = `Show ${format.count(next)} more of ${format.count(chosen.length)}`;
      fill(more, next > 0 && button(said, press, null, "button.quiet"));
    }

    function line({ row, i, depth }) {
      const cells = groups.map(cell(row, sorted ? 0 : depth));
      if (!options.onPick) return el("tr", {}, cells);
      const click = () => options.onPick(row, i);
      const keydown = (event) => memprof.dom.onKey(event, { Enter: click, " ": click });
      const picked = options.isPicked?.(row) ? "true" : null;
      const on = { click, keydown };
      return el("tr.pickable", { tabindex: "0", "aria-selected": picked, on }, cells);
    }

    function cell(row, depth) {
      return ([column, i, below]) => {
        const parts = [show(column, row[i])];
        const said = below.filter(([, k]) => !missing(row[k]));
        const code = said.map(([, k]) => row[k]).find(Array.isArray);
        if (code?.[3]) parts.push(el("div.code", {}, code[3]));
        if (said.length) {
          const small = said.map(([c, k]) => [c.unit === "category" && swatch(row[k]), text(c, row[k])]);
          const joined = small.flatMap((part, n) => (n ? [" · ", ...part] : part));
          parts.push(el("div.dim", { class: said.some(([c]) => c.unit === "code") && "dim code" }, joined));
        }
        const wide = column === (main ?? name);
        const short = !wide && !NUMBERS.has(column.unit) && String(row[i]).length < 40;
        const indent = depth && column === name ? `${depth * 18}px` : null;
        return el(
          "td",
          { class: short ? "nowrap" : classes(column), data: { label: column.title }, style: indent && { "padding-left": indent } },
          parts,
        );
      };
    }
  }

  /** A table whose rows are items of a list. */
  function lines({ columns, rows, caption, folded, empty }) {
    if (!rows.length) return empty || caption ? el("p.help", {}, empty || caption) : el("div");
    const item = (row) => {
      const said = [];
      columns.forEach((c, i) => {
        if (missing(row[i]) || (c.unit === "times" && row[i] === 1)) return;
        const words = text(c, row[i]);
        said.push(NUMBERS.has(c.unit) && c.title ? `${words} ${c.title}` : words);
      });
      const code = row.find(Array.isArray);
      return el("li", {}, said.join(" · "), code?.[3] && el("div.code", {}, code[3]));
    };
    const list = el("ul.notes", {}, rows.slice(0, LINES).map(item));
    if (rows.length > LINES) list.append(el("li", {}, `and ${format.count(rows.length - LINES)} more`));
    if (folded) return el("details", {}, el("summary", {}, caption), list);
    return el("div", {}, caption && el("p.help", {}, caption), list);
  }

  const NOTES = { warn: "p.notice", error: "p.notice.error" };

  /** What a section says, without its title: notes, tables, and the sections below it. */
  function section(data, options = {}) {
    const notes = data.notes.map(([tone, said]) => el(NOTES[tone] ?? "p.help", {}, said));
    const body = [
      notes,
      data.view && memprof.views.draw(data.view),
      data.tables.map((t) => table(t, { title: data.title, ...options })),
      data.parts.map((part) => {
        const box = { warn: "div.notice", error: "div.notice.error" }[part.tone] ?? "div.part";
        const title = part.title && el(part.tone === "plain" ? "h3" : "strong", {}, part.title);
        return el(box, { id: part.id || null }, title, section(part));
      }),
    ];
    return el("div", {}, body);
  }

  memprof.table = { table, section, swatch };
})((globalThis.memprof ??= {}));
