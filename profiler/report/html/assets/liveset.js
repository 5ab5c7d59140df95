// The live set at the chosen instant: as a treemap, as a table, and one of its parts in detail.

const HOLDS = {
  call: "it belongs to this call: an input of it, or made by it",
  persistent: "it stays from call to call: a parameter, a buffer or optimizer state",
  saved: "a forward saved it and its backward has not run yet",
  handed_on: "another compiled graph takes it as an input later",
};

function liveTable(state, root) {
  let view = "module";
  const { templates, views: every } = state.payload;
  const name = (v) => templates[v].columns[3].title;
  const nameOf = (part) => part.key || "(root)";
  const choices = [...every, "storage"].map((v) => [v, heading(name(v))]);
  const tabs = toggles("Live set by", choices, (v) => {
    view = v;
    draw();
  });
  const holder = el("div", { id: "live-table" });
  fill(root, tabs.element, holder);

  /** The table that Python describes, with shares of all that is live. */
  function draw() {
    tabs.set(view);
    const { model, live, total } = state;
    const of =
      view === "storage" ? { parts: storages(), remainder: [] } : model.breakdown(live, view);
    const more = {
      node: (p) => [model.graphs.get(p.graph)?.label ?? "", p.note],
      line: (p) => [p.note],
      storage: (p) => [p.category, p.graph?.label, p.node, p.fqn],
    }[view];
    const rows = of.parts.map((p) => [
      ...[p.nbytes, p.nbytes, p.storages, nameOf(p)],
      ...(more?.(p) ?? []),
    ]);
    const unknown = of.remainder.length ? of.remainder : [{ nbytes: 0, storages: 0 }];
    const left = unknown.map(({ nbytes, storages: n, key }) => {
      return [nbytes, nbytes, n, key ? `unattributed: ${key}` : "unattributed"];
    });
    const copies = [...live.values()].reduce((a, b) => a + b, 0);
    const foot = [...(view === "storage" ? [] : left), [total, total, copies, "total"]];
    const columns = templates[view].columns.map((c) => ({ ...c, whole: total }));
    const title = `Live set by ${name(view)}`;
    const onPick = (_, i) => state.showDetail(words(nameOf(of.parts[i])), of.parts[i].items);
    fill(holder, table({ ...templates[view], columns }, { rows, foot, limit: 14, title, onPick }));
    const last = holder.querySelector("tfoot tr:last-child .num");
    last.id = "live-total";
    last.dataset.bytes = total;
  }

  /** Each storage as a part of its own. */
  function storages() {
    const parts = [...state.live].map(([item, copies]) => {
      const d = state.model.describe(item);
      const key = d.owner ?? "(scratch memory of a kernel)";
      return { ...d, key, storages: copies, nbytes: d.nbytes * copies, items: [item] };
    });
    return parts.sort((a, b) => b.nbytes - a.nbytes);
  }

  state.on("select", draw);
}

/** One part of the live set, or a block: what it is, where it comes from, why it is live. */
function detail(state, root) {
  const none = "Choose a part of the treemap or a row of the table to see where it comes from.";
  const sum = (parts, value) => parts.reduce((n, d) => n + value(d), 0);
  const size = (d) => d.nbytes * d.copies;

  function show() {
    const { title, items, block } = state.detail;
    const { model, live } = state;
    const found = items.filter((i) => live.has(i));
    const all = found.map((i) => ({ ...model.describe(i), copies: live.get(i) }));
    if (block) all.push({ ...block, copies: 1 });
    if (!all.length) return fill(root, el("p.empty", {}, none));
    all.sort((a, b) => size(b) - size(a));
    const copies = sum(all, (d) => d.copies);
    const many = copies === 1 ? "one storage" : `${count(copies)} storages`;
    const total = sum(all, size);
    const lines = [...Map.groupBy(all, (d) => d.location ?? "")];
    fill(
      root,
      el("h3", {}, el("span.code", {}, title)),
      el("p.num", {}, `${bytes(total)} in ${many}, ${share(total, state.total)} of what is live`),
      lines.slice(0, 6).map(([location, group]) => source(location, group)),
      lines.length > 6 && el("p.dim", {}, `and ${count(lines.length - 6)} more source lines`),
    );
  }

  function source(location, group) {
    const first = group[0];
    const place = first.function ? `${location} in ${first.function}` : location;
    const total = sum(group, size);
    const [nodes, ops, fqns, categories, holds] = ["node", "op", "fqn", "category", "hold"].map(
      (key) => [...new Set(group.map((d) => d[key]).filter(Boolean))],
    );
    const list = (names) =>
      names.slice(0, 8).join(", ") + (names.length > 8 ? `, … ${names.length} in all` : "");
    return el(
      "div.source",
      {},
      first.code && el("pre.source-code", {}, el("code", {}, first.code)),
      el("div.dim.code", {}, location ? place : `no source line: ${first.outside ?? "unknown"}`),
      facts([
        ["Bytes", `${bytes(total)} (${exactBytes(total)})`],
        ["Category", categories.map((c) => [categorySwatch(c), words(c), " "])],
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
  state.on("select", show);
}

// The live set as a treemap: modules, their FX nodes with the source line and its code.

const SMALL_LEAF = 1 / 1500;
const MOST_LEAVES = 900;
/** Pixels that the label "999 MiB" takes with its padding. */
const NARROW = 56;
/** Height of a module's name, of a line of a label, and the room around what is in a module. */
const MODULE_HEAD = 18;
const LABEL_LINE = 14;
const GAP = 2;

/** The tree of modules, with leaves (node, source line, category); every byte is in one leaf. */
function liveTree(model, live, total) {
  const sites = [...Map.groupBy(live, ([item]) => model.sites[item])];
  const leaves = sites.map(([site, of]) => {
    const info = model.describe(of[0][0]);
    return {
      ...{ info, category: info.category, modules: model.modulesOf(site) },
      name: info.fqn ?? info.node ?? info.owner ?? "scratch",
      items: of.map(([item]) => item),
      value: of.reduce((n, [item, copies]) => n + model.nbytes[item] * copies, 0),
    };
  });
  const order = leaves.filter((leaf) => leaf.value > 0).sort((a, b) => b.value - a.value);
  order.forEach((leaf, rank) => {
    leaf.small = rank >= MOST_LEAVES || leaf.value < total * SMALL_LEAF;
  });
  return moduleOf("", "", order, 0);
}

/** A module so deep in the tree, of `leaves`; with a single module below it is one: `encoder.layers`. */
function moduleOf(name, path, leaves, depth) {
  const own = leaves.filter((leaf) => leaf.modules.length === depth);
  const inside = leaves.filter((leaf) => leaf.modules.length > depth);
  const below = [...Map.groupBy(inside, (leaf) => leaf.modules[depth])];
  if (path && !own.length && below.length === 1) {
    const [[next]] = below;
    return moduleOf(`${name}.${next}`, `${path}.${next}`, leaves, depth + 1);
  }
  const sum = (parts) => ({
    value: parts.reduce((total, part) => total + part.value, 0),
    items: parts.flatMap((part) => part.items),
  });
  const small = Map.groupBy(
    own.filter((leaf) => leaf.small),
    (leaf) => leaf.category,
  );
  const children = [
    ...below.map(([next, of]) => moduleOf(next, path ? `${path}.${next}` : next, of, depth + 1)),
    ...own.filter((leaf) => !leaf.small),
    ...[...small].map(([category, of]) => ({ name: `${of.length} smaller`, category, ...sum(of) })),
  ];
  children.sort((a, b) => b.value - a.value);
  return { name: name || "(root)", path, children, module: true, ...sum(children) };
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

const siteFacts = ({ category, module, op, outside, graph }) => [
  ["category", words(category), categoryColor(category)],
  ["module", module],
  ["operator", op],
  ["graph", outside ? null : graph?.label],
];

function treemap(state, root) {
  const picture = canvas("treemap-canvas", "Treemap");
  const box = el("div.treemap", { id: "treemap" }, picture);
  fill(root, box);
  /** What is drawn, in order: what lies in a module comes after it. */
  let boxes = [];
  const refresh = drawn(box, draw);
  const pick = (found) => state.showDetail(titleOf(found), found.items);
  pointed(box, (x, y) => boxAt(boxes, x, y), hover, pick);

  function titleOf(data) {
    if (data.module) return data.path || "(root)";
    return data.info ? data.name : `${data.name} in ${words(data.category)}`;
  }

  function hover(data, event) {
    const { category, info: d } = data;
    const size = [
      ["bytes", bytes(data.value)],
      ["share", share(data.value, state.total)],
    ];
    const known = category ? siteFacts({ ...d, category }) : [];
    showTooltip(event, titleOf(data), [...size, ...known], d?.location, d?.code);
  }

  function draw() {
    const top = liveTree(state.model, state.live, state.total);
    box.dataset.bytes = String(top.value);
    const largest = top.children.slice(0, 5).map((c) => `${c.name} ${share(c.value, top.value)}`);
    picture.ariaLabel =
      `Treemap of ${bytes(top.value)} by module; the table beside it has the same numbers. ` +
      `Largest: ${largest.join(", ")}`;
    const c = begin(picture, box.clientWidth, box.clientHeight);
    boxes = [];
    paint(c, { ...top, name: "everything" }, [0, 0, box.clientWidth, box.clientHeight]);
  }

  function paint(c, node, place) {
    const [x, y, width, height] = place;
    if (width < 2 || height < 2) return;
    boxes.push([node, place]);
    if (!node.module) return leaf(c, node, place);
    c.fillStyle = color("--panel");
    c.fillRect(x, y, width - 1, height - 1);
    const head = height > 2 * MODULE_HEAD && width > NARROW ? MODULE_HEAD : GAP;
    if (head === MODULE_HEAD) {
      c.fillStyle = color("--text");
      const whole = `${node.name}  ${bytes(node.value)}`;
      const fits = c.measureText(whole).width <= width - 8;
      write(c, fits ? whole : node.name, x + 3, y + MODULE_HEAD / 2, width - 8);
    }
    const room = [x + GAP, y + head, width - 2 * GAP - 1, height - head - GAP - 1];
    squarify(node.children, room, (child, its) => paint(c, child, its));
  }

  /** Leaves have their category's colour and a text colour that can be read on it. */
  function leaf(c, node, [x, y, width, height]) {
    const ground = categoryColor(node.category);
    c.fillStyle = ground;
    c.fillRect(x, y, width - 1, height - 1);
    // Where a box cannot hold a number it has no label: a number that is cut is a wrong one.
    if (width < NARROW) return;
    c.fillStyle = textOn(ground);
    [node.name, bytes(node.value), node.info?.code].filter(Boolean).forEach((text, i) => {
      const middle = 10 + i * LABEL_LINE;
      if (middle + LABEL_LINE / 2 < height) write(c, text, x + 4, y + middle, width - 9);
    });
  }

  state.on("select", refresh);
}
