// The live set as a treemap: modules, their FX nodes with the source line and its code.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const { bytes, share } = memprof.format;
  const SMALL = 1 / 1500;
  const MOST = 900;
  /** Pixels that the label "999 MiB" takes with its padding. */
  const NARROW = 56;
  /** Levels of modules, as in attribution.py: every one is a level of recursion here. */
  const DEEPEST = 64;

  /** The tree of modules, with leaves (node, source line, category); every byte is in one leaf. */
  function tree(model, live, total) {
    const leaves = new Map();
    for (const [item, copies] of live) {
      const { site, nbytes } = model.device.items;
      const s = site[item];
      let leaf = leaves.get(s);
      if (!leaf) leaves.set(s, (leaf = { ...model.describe(item), items: [], value: 0 }));
      leaf.items.push(item);
      leaf.value += nbytes[item] * copies;
    }
    const root = node("", "");
    const order = [...leaves.values()].filter((l) => l.value > 0).sort((a, b) => b.value - a.value);
    order.forEach((leaf, rank) => {
      const parent = moduleOf(root, leaf, model);
      if (rank < MOST && leaf.value >= total * SMALL) parent.leaves.push(leaf);
      else small(parent, leaf);
    });
    return finish(root);
  }

  function node(name, path) {
    return { name, path, below: new Map(), leaves: [], small: new Map() };
  }

  function moduleOf(root, leaf, model) {
    const place = model.payload.sites.by_module[leaf.site];
    if (place < 0) {
      const reason = model.string(model.payload.sites.reasons[-1 - place]);
      return child(root, `unattributed: ${reason}`, `unattributed: ${reason}`);
    }
    const key = model.string(model.payload.sites.names.module.key[place]);
    if (key.startsWith("(")) return child(root, key, key);
    let at = root;
    let path = "";
    for (const part of moduleParts(key)) {
      path = path ? `${path}.${part}` : part;
      at = child(at, part, path);
    }
    return at;
  }

  /** Names on the way from the root to a module, at most DEEPEST: the last has all that is left. */
  function moduleParts(key) {
    if (!key) return [];
    const parts = key.split(".");
    if (parts.length <= DEEPEST) return parts;
    return [...parts.slice(0, DEEPEST - 1), parts.slice(DEEPEST - 1).join(".")];
  }

  function child(parent, name, path) {
    if (!parent.below.has(name)) parent.below.set(name, node(name, path));
    return parent.below.get(name);
  }

  function small(parent, leaf) {
    const known = parent.small.get(leaf.category);
    if (known) {
      known.value += leaf.value;
      known.items.push(...leaf.items);
      known.number += 1;
    } else {
      parent.small.set(leaf.category, {
        category: leaf.category,
        value: leaf.value,
        items: [...leaf.items],
        number: 1,
      });
    }
  }

  /** To ECharts' nodes; modules with a single module below are joined: `encoder.layers`. */
  function finish(n) {
    const only = n.below.size === 1 && !n.leaves.length && !n.small.size;
    if (only && n.path !== "") {
      const [below] = n.below.values();
      below.name = `${n.name}.${below.name}`;
      return finish(below);
    }
    const children = [
      ...[...n.below.values()].map(finish),
      ...n.leaves.map((leaf) =>
        shape(leaf, leaf.fqn ?? leaf.node ?? leaf.owner ?? "scratch", leaf),
      ),
      ...[...n.small.values()].map((s) => shape(s, `${s.number} smaller`, null)),
    ];
    const value = children.reduce((sum, c) => sum + c.value, 0);
    const items = children.flatMap((c) => c.items);
    return { name: n.name || "(root)", path: n.path, value, children, items, module: true };
  }

  function shape(leaf, name, info) {
    return { name, value: leaf.value, items: leaf.items, category: leaf.category, info };
  }

  function treemap(state, root) {
    const box = el("div.treemap", { role: "img", id: "treemap" });
    fill(root, box);
    const chart = echarts.init(box, null, { renderer: "canvas" });
    let hidden = true;
    new IntersectionObserver(
      (entries) => {
        const visible = entries.some((e) => e.isIntersecting);
        if (visible && hidden) {
          hidden = false;
          draw();
        } else if (!visible) hidden = true;
      },
      { rootMargin: "400px" },
    ).observe(box);
    new ResizeObserver(() => chart.resize()).observe(box);
    memprof.theme.onChange(draw);
    chart.on("click", (event) => {
      if (event.data?.items) state.showDetail(event.data.items, titleOf(event.data));
    });
    chart.on("mousemove", (event) => {
      if (event.data?.items) hover(event);
    });
    chart.on("mouseout", memprof.tooltip.hide);
    chart.on("globalout", memprof.tooltip.hide);

    function titleOf(data) {
      if (data.module) return data.path || "(root)";
      return data.info ? data.name : `${data.name} in ${data.category.replaceAll("_", " ")}`;
    }

    function hover(event) {
      const { data } = event;
      const mouse = event.event.event;
      const rows = [
        ["bytes", bytes(data.value)],
        ["share", share(data.value, state.total)],
      ];
      const d = data.info;
      if (data.category) {
        rows.push([
          "category",
          data.category.replaceAll("_", " "),
          memprof.theme.category(data.category),
        ]);
      }
      if (d?.module !== undefined && d?.module !== null)
        rows.push(["module", d.module || "(root)"]);
      if (d?.op) rows.push(["operator", d.op]);
      if (d?.graph && !d.outside) rows.push(["graph", d.graph.label]);
      memprof.tooltip.show(mouse.clientX, mouse.clientY, titleOf(data), rows, d?.location, d?.code);
    }

    function draw() {
      if (hidden || !state.live) return;
      const theme = memprof.theme;
      const top = tree(state.model, state.live, state.total);
      box.dataset.bytes = String(top.value);
      box.setAttribute(
        "aria-label",
        `Treemap of ${bytes(top.value)} by module; the table beside it has the same numbers. Largest: ` +
          top.children
            .slice()
            .sort((a, b) => b.value - a.value)
            .slice(0, 5)
            .map((c) => `${c.name} ${share(c.value, top.value)}`)
            .join(", "),
      );
      paint(top, theme);
      chart.setOption(
        {
          animation: false,
          textStyle: theme.chartBase().textStyle,
          series: [
            {
              type: "treemap",
              animation: false,
              animationDurationUpdate: 0,
              data: top.children,
              left: 0,
              right: 0,
              top: 0,
              bottom: 0,
              roam: false,
              nodeClick: false,
              breadcrumb: { show: false },
              visibleMin: 30,
              squareRatio: 1.2,
              label: {
                show: true,
                overflow: "truncate",
                fontSize: 11,
                padding: [3, 4],
                lineHeight: 14,
                position: "insideTopLeft",
                formatter: labelOf,
              },
              // Where a box cannot hold a number, ECharts would cut it without a mark: no label then.
              labelLayout: ({ rect }) => (rect.width < NARROW ? { fontSize: 0 } : {}),
              upperLabel: {
                show: true,
                height: 18,
                fontSize: 11,
                color: theme.color("--text"),
                overflow: "truncate",
                formatter: (p) => `${p.name || "everything"}  ${bytes(p.value)}`,
              },
              itemStyle: { borderColor: theme.color("--page"), borderWidth: 0, gapWidth: 1 },
              levels: [
                { itemStyle: { gapWidth: 3, borderWidth: 0 } },
                ...Array.from({ length: 8 }, () => ({
                  itemStyle: { gapWidth: 1, borderWidth: 1 },
                })),
              ],
            },
          ],
        },
        { notMerge: true },
      );
    }

    function labelOf(p) {
      const d = p.data.info;
      const lines = [p.name, bytes(p.value)];
      if (d?.code) lines.push(d.code.slice(0, 80));
      return lines.join("\n");
    }

    /** Leaves have their category's colour and a text colour that can be read on it. */
    function paint(n, theme) {
      for (const c of n.children) {
        if (c.module) {
          c.itemStyle = { color: theme.color("--panel"), borderColor: theme.color("--panel") };
          paint(c, theme);
        } else {
          const color = theme.category(c.category);
          c.itemStyle = { color };
          c.label = { color: theme.textOn(color) };
        }
      }
    }

    state.onSelect(draw);
  }

  Object.assign(memprof, { treemap, liveTree: tree });
})((globalThis.memprof ??= {}));
