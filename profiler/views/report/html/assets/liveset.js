// The live set at the chosen instant: as a treemap, as a table, and one of its parts in detail.

const MOST_LEAVES = 900;

/** @type {Draw} */
function liveSet(state, root) {
  addTemplate(root, "live");
  const { templates, views: names } = state.profile;
  let view = "module";
  const choices = [view, ...names.filter((v) => v !== view)];
  radios(
    byId("live-views"),
    choices.map((v) => [v, templates[v].columns[3].title]),
    (chosen) => {
      view = chosen;
      drawTable();
    },
  );

  /** The table that Python describes, with shares of all that is live. */
  function drawTable() {
    const { model, live, total } = state;
    const parts = model.breakdown(live, view);
    const known = parts.filter((part) => part.known);
    /** @type {(nbytes: number, n: number, name: Cell) => Cell[]} */
    const row = (nbytes, n, name) => [bytesCell(nbytes), shareCell(nbytes, total), [n, grouped(n)], name];
    const rows = known.map((p) => row(p.nbytes, p.storages, nameCell(p.key || "(root)", p.below)));
    const foot = parts.filter((p) => !p.known).map((p) => row(p.nbytes, p.storages, `unattributed: ${p.key}`));
    if (!foot.length) foot.push(row(0, 0, "unattributed"));
    foot.push(row(total, sum([...live.values()]), "total"));
    const pick = (/** @type {number} */ i) => state.showDetail(known[i].key || "(root)", known[i].items);
    const title = `Live set by ${templates[view].columns[3].title}`;
    fill(byId("live-table"), table({ ...templates[view], title, rows, foot }, 14, pick));
    byId("live-table").dataset.bytes = String(total);
  }

  function drawMap() {
    const top = moduleOf("everything", "", leavesOf(state), 0);
    const map = byId("treemap");
    map.dataset.bytes = String(top.value);
    fill(map, split([top], innerWidth > 720 ? 1.6 : 1, state));
    const largest = top.children?.slice(0, 5).map((c) => `${c.name} ${share(c.value, top.value)}`);
    map.ariaLabel =
      `Treemap of ${bytes(top.value)} by module; the table has the same numbers. ` + `Largest: ${largest?.join(", ")}`;
  }

  const drawDetail = () => fill(byId("detail"), detail(state));
  for (const draw of [drawTable, drawMap, drawDetail]) state.on("select", draw);
  state.on("detail", drawDetail);
}

/** One part of the live set: what it is, where it comes from, why it is live. @type {(state: State) => Child} */
function detail({ detail: { title, items }, model, live, total }) {
  const none = "Choose a part of the treemap or a row of the table to see where it comes from.";
  const there = items.map((i) => ({ ...model.describe(i), copies: live.get(i) ?? 0 }));
  const size = (/** @type {typeof there} */ of) => sum(of.map((d) => d.nbytes * d.copies));
  const copies = sum(there.map((d) => d.copies));
  if (!copies) return el("p.empty", {}, none);
  there.sort((a, b) => size([b]) - size([a]));
  const lines = [...Map.groupBy(there, (d) => d.location ?? "").values()];

  function source(/** @type {typeof there} */ group) {
    const [{ code, location, function: inside, outside, module, label }] = group;
    const list = (/** @type {(d: Detail) => string | null} */ of, separator = ", ") => {
      const names = [...new Set(group.map(of))].filter(Boolean);
      return names.slice(0, 8).join(separator) + (names.length > 8 ? `, … ${names.length} in all` : "");
    };
    const where = inside ? `${location} in ${inside}` : location;
    return el(
      "div.source",
      {},
      code && el("pre.source-code", {}, el("code", {}, code)),
      el("div.dim.code", {}, where ?? `no source line: ${outside ?? "unknown"}`),
      facts([
        ["Bytes", `${bytes(size(group))} (${exactBytes(size(group))})`],
        ["Category", list((d) => words(d.category))],
        ["Module", module],
        ["Names", list((d) => d.fqn)],
        ["FX nodes", list((d) => d.node)],
        ["Operator", list((d) => d.op)],
        ["Graph", label],
        ["Live because", list((d) => d.hold, "; ")],
      ]),
    );
  }

  return [
    el("h3.code", {}, words(title)),
    el(
      "p.num",
      {},
      `${bytes(size(there))} in ${copies === 1 ? "one storage" : `${grouped(copies)} storages`}, `,
      `${share(size(there), total)} of what is live`,
    ),
    lines.slice(0, 6).map(source),
    lines.length > 6 && el("p.dim", {}, `and ${grouped(lines.length - 6)} more source lines`),
  ];
}

// The live set as a treemap: modules, their FX nodes with the source line and its code.

/** What is live by site, the largest first; every byte is in one leaf. @type {(state: State) => Leaf[]} */
function leavesOf({ model, live }) {
  const sites = Map.groupBy([...live.keys()], (item) => model.siteOf[item]);
  /** @type {Leaf[]} */
  const leaves = [...sites.values()].map((items) => {
    const info = model.describe(items[0]);
    const value = sum(items.map((item) => model.nbytes[item] * (live.get(item) ?? 0)));
    const name = info.fqn ?? info.node ?? info.owner ?? "scratch";
    return { name, path: name, modules: info.modules, value, items, info };
  });
  leaves.sort((a, b) => b.value - a.value);
  // Of each module and category, the smallest are one.
  const small = leaves.splice(MOST_LEAVES);
  for (const of of Map.groupBy(small, ({ modules, info }) => `${modules} ${info?.category}`).values()) {
    const name = `${of.length} smaller`;
    leaves.push({ ...of[0], name, value: sum(of.map((l) => l.value)), items: of.flatMap((l) => l.items) });
  }
  return leaves.filter((leaf) => leaf.value > 0);
}

/** A module so deep in the tree, with what is in it. @type {(name: string, path: string, leaves: Leaf[], depth: number) => Leaf} */
function moduleOf(name, path, leaves, depth) {
  const children = leaves.filter((leaf) => leaf.modules.length === depth);
  const below = Map.groupBy(
    leaves.filter((leaf) => leaf.modules.length > depth),
    (leaf) => leaf.modules[depth],
  );
  for (const [next, of] of below) {
    const whole = path ? `${path}.${next}` : next;
    // With a single module in it and nothing else, it is one: `encoder.layers`.
    if (path && below.size === 1 && !children.length) return moduleOf(`${name}.${next}`, whole, of, depth + 1);
    children.push(moduleOf(next, whole, of, depth + 1));
  }
  children.sort((a, b) => b.value - a.value);
  return {
    name,
    path,
    modules: [],
    children,
    value: sum(leaves.map((l) => l.value)),
    items: leaves.flatMap((l) => l.items),
  };
}

/** Boxes as large as what is in them: halves beside each other, across the longer side. @type {(leaves: Leaf[], ratio: number, state: State) => Child} */
function split(leaves, ratio, state) {
  const whole = sum(leaves.map((l) => l.value));
  const style = { "flex-grow": String(whole) };
  if (leaves.length > 1) {
    let [n, half] = [1, leaves[0].value];
    while (n < leaves.length - 1 && half + leaves[n].value / 2 < whole / 2) half += leaves[n++].value;
    const part = half / whole;
    const [a, b] = ratio > 1 ? [ratio * part, ratio * (1 - part)] : [ratio / part, ratio / (1 - part)];
    const parts = [split(leaves.slice(0, n), a, state), split(leaves.slice(n), b, state)];
    return el(ratio > 1 ? "div.across" : "div.down", { style }, parts);
  }
  const [{ name, path, value, items, info, children }] = leaves;
  const text = tip(path || name, [["bytes", bytes(value)], ["share", share(value, state.total)], ...siteFacts(info)]);
  const ground = info && `var(${categoryVariable(info.category)})`;
  const click = (/** @type {Event} */ event) => {
    event.stopPropagation();
    state.showDetail(path || name, items);
  };
  const properties = { style: { ...style, "--ground": ground }, "data-tip": text, click };
  if (children)
    return el("div.module", properties, el("b", {}, `${name}  ${bytes(value)}`), split(children, ratio, state));
  return el(
    "div.leaf",
    properties,
    [name, bytes(value), info?.code].map((line) => el("span", {}, line)),
  );
}

/** @type {(info?: Detail) => Fact[]} */
function siteFacts(info) {
  if (!info) return [];
  const { category, module, op, label, location, code } = info;
  return [
    ["category", words(category)],
    ["module", module],
    ["operator", op],
    ["graph", label],
    ["line", location],
    ["code", code],
  ];
}
