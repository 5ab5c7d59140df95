// Tables of data: numbers to the right, sortable, a bounded number of rows at a time, and at
// phone width one block a row with every cell under its column's name.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const narrow = matchMedia("(max-width: 720px)");

  /**
   * @typedef {object} Column
   * @property {string} label
   * @property {function(row): (Node|string|number|null)} cell what stands there
   * @property {function(row): (number|string|null)} [value] what to sort by; without it the
   *   column does not sort
   * @property {boolean} [number] right-aligned, tabular digits
   * @property {boolean} [wide] takes what width is left and wraps
   * @property {boolean} [code] monospace
   * @property {string} [title] longer explanation of the column
   */

  /**
   * A table.
   *
   * @param {object} options
   * @param {string} options.caption what it is, for everyone
   * @param {boolean} [options.quietCaption] the caption is for screen readers alone
   * @param {Column[]} options.columns
   * @param {Array} options.rows in their first order
   * @param {number} [options.limit] rows shown until more are asked for, 12 by default,
   *   at phone width 6 at most
   * @param {Array<Array>} [options.foot] rows of cells below, e.g. the remainder and the total
   * @param {function(row)} [options.onPick] makes rows buttons
   * @param {function(row): boolean} [options.isPicked]
   * @param {boolean} [options.fit] no wider than it needs to be
   * @param {string} [options.empty] said instead of a table without rows
   */
  function table(options) {
    const { columns, rows, caption, foot = [], empty = "Nothing." } = options;
    const limit = Math.min(options.limit ?? 12, narrow.matches ? 6 : Infinity);
    const root = el("div.table-wrap");
    if (!rows.length && !foot.length) {
      root.append(el("p.empty", {}, empty));
      return root;
    }
    let order = rows;
    let sorted = null;
    let shown = limit;
    const body = el("tbody");
    const heads = columns.map((column, i) => head(column, i));
    const more = el("p.table-more");
    root.append(
      el(
        "table.data",
        { class: options.fit ? "data fit" : "data" },
        el("caption", { class: options.quietCaption && "visually-hidden" }, caption),
        el("thead", {}, el("tr", {}, heads)),
        body,
        foot.length > 0 &&
          el(
            "tfoot",
            {},
            foot.map((cells) => el("tr", {}, cells.map(footCell))),
          ),
      ),
      more,
    );
    draw();
    return root;

    function head(column, i) {
      const properties = { scope: "col", class: classes(column), title: column.title };
      if (!column.value) return el("th", properties, column.label);
      const button = el(
        "button.sort",
        { type: "button", on: { click: () => sortBy(i) } },
        column.label,
      );
      return el("th", { ...properties, "aria-sort": "none" }, button);
    }

    function sortBy(i) {
      const down = sorted?.column === i ? !sorted.down : Boolean(columns[i].number);
      sorted = { column: i, down };
      const { value } = columns[i];
      const sign = down ? -1 : 1;
      order = [...rows].sort((a, b) => {
        const x = value(a);
        const y = value(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
      });
      heads.forEach((h, j) => {
        if (columns[j].value) {
          h.setAttribute("aria-sort", j !== i ? "none" : down ? "descending" : "ascending");
        }
      });
      draw();
    }

    function draw() {
      fill(body, order.slice(0, shown).map(row));
      fill(more);
      const left = order.length - shown;
      if (left > 0) {
        const next = Math.min(left, Math.max(limit * 4, 50));
        more.append(
          el(
            "button.quiet",
            {
              type: "button",
              on: {
                click: () => {
                  shown += next;
                  draw();
                },
              },
            },
            `Show ${memprof.format.count(next)} more of ${memprof.format.count(order.length)}`,
          ),
        );
      }
    }

    function row(data) {
      const cells = columns.map((column, i) =>
        el(
          i === 0 && options.rowHeads ? "th" : "td",
          {
            class: classes(column),
            scope: i === 0 && options.rowHeads ? "row" : null,
            data: { label: column.label },
          },
          column.cell(data),
        ),
      );
      if (!options.onPick) return el("tr", {}, cells);
      const pick = () => options.onPick(data);
      return el(
        "tr.pickable",
        {
          tabindex: "0",
          "aria-selected": options.isPicked?.(data) ? "true" : null,
          on: {
            click: pick,
            keydown: (event) => {
              if (event.key === "Enter" || event.key === " ") {
                event.preventDefault();
                pick();
              }
            },
          },
        },
        cells,
      );
    }

    function footCell(content, i) {
      return el("td", { class: classes(columns[i]), data: { label: columns[i].label } }, content);
    }
  }

  function classes(column) {
    return (
      [column.number && "num", column.wide && "wide", column.code && "code"]
        .filter(Boolean)
        .join(" ") || null
    );
  }

  /** A share as a bar with its number, for a table cell. */
  function bar(part, whole, color) {
    const percent = whole ? Math.min(100, (100 * part) / whole) : 0;
    return el(
      "span.bar",
      { style: { "--bar": `${percent}%`, "--bar-color": color ?? "var(--accent)" } },
      memprof.format.share(part, whole),
    );
  }

  /** Bytes for a table cell: rounded, with all digits on hover and for screen readers. */
  function bytesCell(n) {
    if (n === null || n === undefined) return "-";
    return el("span", { title: memprof.format.exactBytes(n) }, memprof.format.bytes(n));
  }

  memprof.table = { table, bar, bytesCell };
})((globalThis.memprof ??= {}));
