// The live set at the chosen instant: as a treemap, as a table, and one of its parts in detail.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const { bytes, exactBytes, share, count } = memprof.format;
  const { table, swatch } = memprof.table;
  const HOLDS = {
    call: "it belongs to this call: an input of it, or made by it",
    persistent: "it stays from call to call: a parameter, a buffer or optimizer state",
    saved: "a forward saved it and its backward has not run yet",
    handed_on: "another compiled graph takes it as an input later",
  };

  function liveTable(state, root) {
    let view = "module";
    const { templates, views } = state.payload;
    const name = (v) => templates[v].columns[3].title;
    const choices = [...views, "storage"].map((v) => [v, memprof.format.title(name(v))]);
    const tabs = memprof.toggles("Live set by", choices, (v) => {
      view = v;
      draw();
    });
    const holder = el("div", { id: "live-table" });
    fill(root, tabs.element, holder);

    /** The table that Python describes, with shares of all that is live. */
    function draw() {
      tabs.set(view);
      const { model, live, total } = state;
      const { parts, remainder } = view === "storage" ? storages() : model.breakdown(live, view);
      const graph = (p) => model.graphs.get(p.graph)?.label ?? "";
      const more = {
        node: (p) => [graph(p), p.note],
        line: (p) => [p.note],
        storage: (p) => [p.category, p.graph?.label, p.node, p.fqn],
      }[view];
      const rows = parts.map((p) => [p.nbytes, p.nbytes, p.storages, nameOf(p), ...(more?.(p) ?? [])]);
      const left = remainder.length ? remainder : [{ nbytes: 0, storages: 0 }];
      const foot = left.map(({ nbytes, storages, key }) => {
        return [nbytes, nbytes, storages, key ? `unattributed: ${key}` : "unattributed"];
      });
      const copies = [...live.values()].reduce((a, b) => a + b, 0);
      foot.push([total, total, copies, "total"]);
      const columns = templates[view].columns.map((c) => ({ ...c, whole: total }));
      const title = `Live set by ${name(view)}`;
      const onPick = (_, i) => state.showDetail(parts[i].items, memprof.dom.words(nameOf(parts[i])));
      const shown = { rows, foot: view === "storage" ? foot.slice(-1) : foot, limit: 14, title, onPick };
      fill(holder, table({ ...templates[view], columns }, shown));
      const last = holder.querySelector("tfoot tr:last-child .num");
      last.id = "live-total";
      last.dataset.bytes = total;
    }

    function nameOf(part) {
      return view === "module" ? part.key || "(root)" : part.key;
    }

    /** Each storage as a part of its own. */
    function storages() {
      const parts = [...state.live].map(([item, storages]) => {
        const d = state.model.describe(item);
        const key = d.owner ?? "(scratch memory of a kernel)";
        return { ...d, key, storages, nbytes: d.nbytes * storages, items: [item] };
      });
      return { parts: parts.sort((a, b) => b.nbytes - a.nbytes), remainder: [] };
    }

    state.on("select", draw);
  }

  /** One part of the live set: what it is, where it comes from, why it is live. */
  function detail(state, root) {
    const none = "Choose a part of the treemap or a row of the table to see where it comes from.";
    const empty = () => fill(root, el("p.empty", {}, none));

    function show(items, title, described) {
      const { model } = state;
      const live = items.filter((i) => state.live.has(i));
      const copied = live.map((i) => ({ ...model.describe(i), copies: state.live.get(i) }));
      const all = described?.map((d) => ({ ...d, copies: 1 })) ?? copied;
      all.sort((a, b) => b.nbytes * b.copies - a.nbytes * a.copies);
      if (!all.length) return empty();
      const total = all.reduce((n, d) => n + d.nbytes * d.copies, 0);
      const copies = all.reduce((n, d) => n + d.copies, 0);
      const lines = Map.groupBy(all, (d) => d.location ?? "");
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
      const place = first.function ? `${location} in ${first.function}` : location;
      const total = group.reduce((n, d) => n + d.nbytes * d.copies, 0);
      const [nodes, ops, fqns, categories, holds] = ["node", "op", "fqn", "category", "hold"].map(
        (key) => [...new Set(group.map((d) => d[key]).filter(Boolean))],
      );
      const list = (words) =>
        words.slice(0, 8).join(", ") + (words.length > 8 ? `, … ${words.length} in all` : "");
      return el(
        "div.source",
        {},
        first.code && el("pre.source-code", {}, el("code", {}, first.code)),
        el("div.dim.code", {}, location ? place : `no source line: ${first.outside ?? "unknown"}`),
        memprof.dom.facts([
          ["Bytes", `${bytes(total)} (${exactBytes(total)})`],
          ["Category", categories.map((c) => [swatch(c), memprof.dom.words(c), " "])],
          ["Module", first.module],
          [fqns.length === 1 ? "Name" : "Names", list(fqns)],
          [nodes.length === 1 ? "FX node" : "FX nodes", list(nodes)],
          ["Operator", list(ops)],
          ["Graph", first.outside ? null : first.graph?.label],
          ["Live because", holds.map((h) => HOLDS[h]).join("; ")],
        ]),
      );
    }

    state.on("detail", show);
    state.on("select", () => {
      if (state.detail?.items.length) show(state.detail.items, state.detail.title);
      else empty();
    });
  }

  Object.assign(memprof, { liveTable, detail });
})((globalThis.memprof ??= {}));
