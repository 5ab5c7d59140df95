// The live set at the chosen instant: as a treemap, as a table, and one of its parts in detail.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const { bytes, exactBytes, share, count } = memprof.format;
  const VIEWS = [
    ["category", "Category"],
    ["module", "Module"],
    ["node", "FX node"],
    ["line", "Source line"],
    ["graph", "Graph"],
    ["storage", "Storage"],
  ];
  const HOLDS = {
    call: "it belongs to this call: an input of it, or made by it",
    persistent: "it stays from call to call: a parameter, a buffer or optimizer state",
    saved: "a forward saved it and its backward has not run yet",
    handed_on: "another compiled graph takes it as an input later",
  };

  function liveTable(state, root) {
    let view = "module";
    const tabs = memprof.toggles(
      "Live set by",
      VIEWS.map(([v, label]) => [v, label]),
      (v) => {
        view = v;
        draw();
      },
    );
    const holder = el("div", { id: "live-table" });
    fill(root, tabs.element, holder);

    function draw() {
      tabs.set(view);
      if (!state.model.length) return fill(holder);
      fill(holder, view === "storage" ? storages() : breakdown());
    }

    function breakdown() {
      const b = state.model.breakdown(state.live, view);
      return memprof.table.table({
        caption: `Live set by ${VIEWS.find(([v]) => v === view)[1].toLowerCase()}`,
        quietCaption: true,
        rows: b.parts,
        limit: 14,
        onPick: (part) => state.showDetail(part.items, nameOf(part)),
        columns: [
          {
            label: "Bytes",
            number: true,
            value: (p) => p.nbytes,
            cell: (p) => memprof.table.bytesCell(p.nbytes),
          },
          {
            label: "Share",
            number: true,
            cell: (p) => memprof.table.bar(p.nbytes, b.total, colorOf(p)),
          },
          {
            label: "Storages",
            number: true,
            value: (p) => p.storages,
            cell: (p) => count(p.storages),
          },
          {
            label: VIEWS.find(([v]) => v === view)[1],
            wide: true,
            value: (p) => p.key,
            cell: nameCell,
          },
        ],
        foot: [
          ...b.remainder.map((r) => [
            memprof.table.bytesCell(r.nbytes),
            share(r.nbytes, b.total),
            count(r.storages),
            `unattributed: ${r.key}`,
          ]),
          ...(b.remainder.length ? [] : [[bytes(0), share(0, b.total), count(0), "unattributed"]]),
          [
            el(
              "span",
              { id: "live-total", title: exactBytes(b.total), data: { bytes: b.total } },
              bytes(b.total),
            ),
            share(b.total, b.total),
            "",
            "total",
          ],
        ],
      });
    }

    function nameOf(part) {
      if (view === "module") return part.key || "(root)";
      if (view === "category") return part.key.replaceAll("_", " ");
      return part.key;
    }

    /** Of a path, the end: the file's name says most. */
    function shortName(part) {
      return view === "line" ? memprof.format.path(nameOf(part), 36) : nameOf(part);
    }

    function colorOf(part) {
      return view === "category" ? `var(--cat-${part.key.replaceAll("_", "-")})` : undefined;
    }

    function nameCell(part) {
      const graph =
        view === "node" && part.graph >= 0 ? state.model.graphs.get(part.graph)?.label : null;
      return [
        el(view === "category" ? "span" : "span.code", { title: part.key }, shortName(part)),
        (graph || part.note) &&
          el("div.dim.code", {}, [graph, part.note].filter(Boolean).join(" · ")),
      ];
    }

    function storages() {
      const { items } = state.model.device;
      const rows = [...state.live].map(([item, copies]) => ({
        item,
        copies,
        nbytes: items.nbytes[item] * copies,
      }));
      rows.sort((a, b) => b.nbytes - a.nbytes || a.item - b.item);
      const all = rows.reduce((n, r) => n + r.nbytes, 0);
      return memprof.table.table({
        caption: "Every live storage",
        quietCaption: true,
        rows,
        limit: 14,
        onPick: (r) =>
          state.showDetail([r.item], state.model.describe(r.item).owner ?? "scratch memory"),
        columns: [
          {
            label: "Bytes",
            number: true,
            value: (r) => r.nbytes,
            cell: (r) => memprof.table.bytesCell(r.nbytes),
          },
          { label: "Share", number: true, cell: (r) => memprof.table.bar(r.nbytes, all) },
          { label: "Copies", number: true, value: (r) => r.copies, cell: (r) => count(r.copies) },
          {
            label: "Storage",
            wide: true,
            cell: (r) => {
              const d = state.model.describe(r.item);
              return [
                el("span.code", {}, d.owner ?? "(scratch memory of a kernel)"),
                el(
                  "div.dim",
                  {},
                  swatch(d.category),
                  [d.category.replaceAll("_", " "), d.graph?.label, d.node, d.fqn]
                    .filter(Boolean)
                    .join(" · "),
                ),
              ];
            },
          },
        ],
        foot: [
          [
            el("span", { id: "live-total", data: { bytes: all } }, bytes(all)),
            share(all, all),
            count(rows.reduce((n, r) => n + r.copies, 0)),
            "total",
          ],
        ],
      });
    }

    state.onSelect(draw);
  }

  function swatch(category) {
    return el("i.swatch", { style: { "--swatch": `var(--cat-${category.replaceAll("_", "-")})` } });
  }

  /** One part of the live set: what it is, where it comes from, why it is live. */
  function detail(state, root) {
    const empty = () =>
      fill(
        root,
        el(
          "p.empty",
          {},
          "Choose a part of the treemap or a row of the table to see where it comes from.",
        ),
      );

    function show(items, title, described) {
      const { model } = state;
      const all =
        described?.map((d) => ({ ...d, copies: 1 })) ??
        items
          .filter((i) => state.live.has(i))
          .map((i) => ({ ...model.describe(i), copies: state.live.get(i) }));
      all.sort((a, b) => b.nbytes * b.copies - a.nbytes * a.copies);
      if (!all.length) return empty();
      const total = all.reduce((n, d) => n + d.nbytes * d.copies, 0);
      const copies = all.reduce((n, d) => n + d.copies, 0);
      const lines = groupBy(all, (d) => d.location ?? "");
      fill(
        root,
        el("h3", {}, el("span.code", {}, title)),
        el(
          "p.num",
          {},
          `${bytes(total)} in ${copies === 1 ? "one storage" : `${count(copies)} storages`}, ` +
            `${share(total, state.total)} of what is live`,
        ),
        [...lines].slice(0, 6).map(([location, group]) => source(location, group)),
        lines.size > 6 && el("p.dim", {}, `and ${count(lines.size - 6)} more source lines`),
      );
    }

    function source(location, group) {
      const first = group[0];
      const total = group.reduce((n, d) => n + d.nbytes * d.copies, 0);
      const nodes = [...new Set(group.map((d) => d.node).filter(Boolean))];
      const ops = [...new Set(group.map((d) => d.op).filter(Boolean))];
      const fqns = [...new Set(group.map((d) => d.fqn).filter(Boolean))];
      const categories = [...new Set(group.map((d) => d.category))];
      const holds = [...new Set(group.map((d) => d.hold))];
      const list = (words) =>
        words.slice(0, 8).join(", ") + (words.length > 8 ? `, … ${words.length} in all` : "");
      return el(
        "div.source",
        {},
        first.code && el("pre.source-code", {}, el("code", {}, first.code)),
        el(
          "div.dim.code",
          {},
          location
            ? `${location}${first.function ? ` in ${first.function}` : ""}`
            : "no source line: " + (first.outside ?? "unknown"),
        ),
        el(
          "dl.facts",
          {},
          fact("Bytes", `${bytes(total)} (${exactBytes(total)})`),
          fact("Category", [categories.map((c) => [swatch(c), c.replaceAll("_", " "), " "])]),
          fact("Module", first.module === null ? null : first.module || "(root)"),
          fact(fqns.length === 1 ? "Name" : "Names", list(fqns)),
          fact(nodes.length === 1 ? "FX node" : "FX nodes", list(nodes)),
          fact("Operator", list(ops)),
          fact("Graph", first.outside ? null : first.graph?.label),
          fact("Live because", holds.map((h) => HOLDS[h]).join("; ")),
        ),
      );
    }

    function fact(label, value) {
      if (value === null || value === undefined || value === "") return null;
      return [el("dt", {}, label), el("dd", {}, value)];
    }

    state.onDetail(show);
    state.onSelect(() => {
      if (state.detail?.items.length) show(state.detail.items, state.detail.title);
      else empty();
    });
  }

  function groupBy(list, key) {
    const out = new Map();
    for (const x of list) {
      const k = key(x);
      if (!out.has(k)) out.set(k, []);
      out.get(k).push(x);
    }
    return out;
  }

  Object.assign(memprof, { liveTable, detail });
})((globalThis.memprof ??= {}));
