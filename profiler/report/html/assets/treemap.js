// The live set as a treemap: modules, their FX nodes with the source line and its code.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const { bytes, share } = memprof.format;
  const { write } = memprof.plot;
  const SMALL = 1 / 1500;
  const MOST = 900;
  /** Pixels that the label "999 MiB" takes with its padding. */
  const NARROW = 56;
  /** Height of a module's name, of a line of a label, and the room around what is in a module. */
  const HEAD = 18;
  const LINE = 14;
  const GAP = 2;

  /** The tree of modules, with leaves (node, source line, category); every byte is in one leaf. */
  function tree(model, live, total) {
    const { site, nbytes } = model.device.items;
    const found = [...Map.groupBy(live, ([item]) => site[item]).values()].map((of) => ({
      ...model.describe(of[0][0]),
      items: of.map(([item]) => item),
      value: of.reduce((n, [item, copies]) => n + nbytes[item] * copies, 0),
    }));
    const root = node("", "");
    const order = found.filter((l) => l.value > 0).sort((a, b) => b.value - a.value);
    order.forEach((leaf, rank) => {
      const { leaves, small } = moduleOf(root, leaf, model);
      (rank < MOST && leaf.value >= total * SMALL ? leaves : small).push(leaf);
    });
    return finish(root);
  }

  function node(name, path) {
    return { name, path, below: new Map(), leaves: [], small: [] };
  }

  function moduleOf(root, leaf, model) {
    const { key, known, parts } = memprof.row(model.payload.places.module, leaf.by_module);
    const name = known ? key : `unattributed: ${key}`;
    if (!known || key.startsWith("(")) return child(root, name, name);
    let at = root;
    let path = "";
    for (const part of parts) {
      path = path ? `${path}.${part}` : part;
      at = child(at, part, path);
    }
    return at;
  }

  function child(parent, name, path) {
    if (!parent.below.has(name)) parent.below.set(name, node(name, path));
    return parent.below.get(name);
  }

  /** Modules with a single module below are joined: `encoder.layers`. */
  function finish(n) {
    const only = n.below.size === 1 && !n.leaves.length && !n.small.length;
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
      ...[...Map.groupBy(n.small, (leaf) => leaf.category)].map(([category, of]) => {
        const value = of.reduce((sum, leaf) => sum + leaf.value, 0);
        const items = of.flatMap((leaf) => leaf.items);
        return shape({ category, value, items }, `${of.length} smaller`, null);
      }),
    ];
    children.sort((a, b) => b.value - a.value);
    const value = children.reduce((sum, c) => sum + c.value, 0);
    const items = children.flatMap((c) => c.items);
    return { name: n.name || "(root)", path: n.path, value, children, items, module: true };
  }

  function shape(leaf, name, info) {
    return { name, value: leaf.value, items: leaf.items, category: leaf.category, info };
  }

  /**
   * Rectangles of `children`, largest first, that fill [x, y, width, height] and are as square as
   * they can be: Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).
   */
  function squarify(children, [x, y, width, height], put) {
    let rest = children.reduce((n, c) => n + c.value, 0);
    let i = 0;
    while (i < children.length && rest > 0 && width > 0 && height > 0) {
      const side = Math.min(width, height);
      const scale = (width * height) / rest;
      let sum = 0;
      let worst = Infinity;
      let end = i;
      for (; end < children.length; end++) {
        const next = sum + children[end].value;
        const row = (next * scale) / side;
        const longest = (children[i].value * scale) / row / row;
        const ratio = Math.max(longest, (row * row) / (children[end].value * scale));
        if (ratio > worst) break;
        [sum, worst] = [next, ratio];
      }
      const thick = (sum * scale) / side;
      let at = 0;
      for (; i < end; i++) {
        const long = (children[i].value * scale) / thick;
        put(children[i], width < height ? [x + at, y, long, thick] : [x, y + at, thick, long]);
        at += long;
      }
      if (width < height) [y, height] = [y + thick, height - thick];
      else [x, width] = [x + thick, width - thick];
      rest -= sum;
    }
  }

  function treemap(state, root) {
    const canvas = new memprof.Canvas("treemap-canvas", "Treemap");
    const box = el("div.treemap", { id: "treemap" }, canvas.node);
    fill(root, box);
    /** What is drawn, in order: what lies in a module comes after it. */
    let drawn = [];
    const refresh = memprof.drawn(box, draw);
    memprof.pointed(box, at, hover, (found) => state.showDetail(found.items, titleOf(found)));

    function at(px, py) {
      const inside = ([, [x, y, w, h]]) => px >= x && px < x + w && py >= y && py < y + h;
      return drawn.findLast(inside)?.[0];
    }

    function titleOf(data) {
      if (data.module) return data.path || "(root)";
      return data.info ? data.name : `${data.name} in ${memprof.dom.words(data.category)}`;
    }

    function hover(data, event) {
      const { category, info: d } = data;
      const facts = [
        ["bytes", bytes(data.value)],
        ["share", share(data.value, state.total)],
        ["category", category && memprof.dom.words(category), category && memprof.theme.category(category)],
        ["module", d?.module],
        ["operator", d?.op],
        ["graph", d?.outside ? null : d?.graph?.label],
      ];
      memprof.tooltip.show(event, titleOf(data), facts, d?.location, d?.code);
    }

    function draw() {
      const top = tree(state.model, state.live, state.total);
      box.dataset.bytes = String(top.value);
      const largest = top.children.slice(0, 5).map((c) => `${c.name} ${share(c.value, top.value)}`);
      canvas.node.setAttribute(
        "aria-label",
        `Treemap of ${bytes(top.value)} by module; the table beside it has the same numbers. ` +
          `Largest: ${largest.join(", ")}`,
      );
      const c = canvas.begin(box.clientWidth, box.clientHeight);
      drawn = [];
      paint(c, { ...top, name: "everything" }, [0, 0, box.clientWidth, box.clientHeight]);
    }

    function paint(c, node, place) {
      const [x, y, width, height] = place;
      if (width < 2 || height < 2) return;
      drawn.push([node, place]);
      if (!node.module) return leaf(c, node, place);
      c.fillStyle = memprof.theme.color("--panel");
      c.fillRect(x, y, width - 1, height - 1);
      const head = height > 2 * HEAD && width > NARROW ? HEAD : GAP;
      if (head === HEAD) {
        c.fillStyle = memprof.theme.color("--text");
        const whole = `${node.name}  ${bytes(node.value)}`;
        const fits = c.measureText(whole).width <= width - 8;
        write(c, fits ? whole : node.name, x + 3, y + HEAD / 2, width - 8);
      }
      const inside = [x + GAP, y + head, width - 2 * GAP - 1, height - head - GAP - 1];
      squarify(node.children, inside, (child, its) => paint(c, child, its));
    }

    /** Leaves have their category's colour and a text colour that can be read on it. */
    function leaf(c, node, [x, y, width, height]) {
      const color = memprof.theme.category(node.category);
      c.fillStyle = color;
      c.fillRect(x, y, width - 1, height - 1);
      // Where a box cannot hold a number it has no label: a number that is cut is a wrong one.
      if (width < NARROW) return;
      c.fillStyle = memprof.theme.textOn(color);
      [node.name, bytes(node.value), node.info?.code].filter(Boolean).forEach((text, i) => {
        const middle = 10 + i * LINE;
        if (middle + LINE / 2 < height) write(c, text, x + 4, y + middle, width - 9);
      });
    }

    state.on("select", refresh);
  }

  Object.assign(memprof, { treemap, liveTree: tree });
})((globalThis.memprof ??= {}));
