// Live sets from the payload; see Note [How a live set is put together] in payload_live.py.

/** A column of a table that has each value once. @type {<T>(column: Distinct<T>) => T[]} */
const unpacked = ({ of, at }) => at.map((i) => of[i]);
/** A row of such a table. @type {<T>(columns: Columns<T>, i: number) => T} */
const rowOf = (columns, i) =>
  /** @type {any} */ (Object.fromEntries(Object.entries(columns).map(([name, c]) => [name, c.of[c.at[i]]])));

/** @type {(profile: Profile) => Model} */
function modelOf(profile) {
  const { calls, steps, units, lists, items } = profile.device;
  const nbytes = unpacked(items.nbytes);
  const siteOf = unpacked(items.site);
  const categories = unpacked(profile.sites.category);
  const categoryOf = siteOf.map((site) => STACK.indexOf(categories[site]));
  /** @type {Levels[]} */
  const levelsOf = [];

  const stepOf = (/** @type {number} */ k) => steps[calls.step[k]];
  const unit = (/** @type {number} */ k) => units[stepOf(k).unit];
  const last = (/** @type {number} */ k) => unit(k)?.line.length ?? 0;
  /** What the first events of a call take out and put in: items and -1 or 1. */
  function* changes(/** @type {number} */ k, from = 0, to = last(k)) {
    const own = lists[stepOf(k).own];
    const { before, after } = unit(k) ?? { before: [], after: [] };
    for (let i = from; i < to; i++) {
      if (before[i] !== -1) yield [before[i] < -1 ? own[-2 - before[i]] : before[i], -1];
      if (after[i] !== -1) yield [after[i] < -1 ? own[-2 - after[i]] : after[i], 1];
    }
  }

  /** @type {Model["live"]} */
  function live(k, position) {
    const isBetween = position > last(k);
    const { rest, own, between } = stepOf(k);
    const pairs = lists[isBetween ? between : rest];
    const found = pairs.flatMap((item, i) => (i % 2 ? [] : [[item, pairs[i + 1]]]));
    if (!isBetween) found.push(...lists[own].map((item) => [item, 1]), ...changes(k, 0, position));
    const counts = new Map();
    for (const [item, n] of found) counts.set(item, (counts.get(item) ?? 0) + n);
    return new Map([...counts].filter(([, n]) => n));
  }

  /** @type {Model["levels"]} */
  function levels(k) {
    const known = levelsOf[calls.step[k]];
    if (known) return known;
    const total = new Float64Array(last(k) + 2);
    const stack = new Float64Array(total.length * STACK.length);
    const now = new Float64Array(STACK.length);
    const keep = (/** @type {number} */ position, /** @type {Iterable<number[]>} */ found) => {
      for (const [item, n] of found) now[categoryOf[item]] += n * nbytes[item];
      stack.set(now, position * STACK.length);
      total[position] = sum([...now]);
    };
    keep(0, live(k, 0));
    for (let p = 1; p <= last(k); p++) keep(p, changes(k, p - 1, p));
    const inside = total.subarray(0, -1);
    const highest = inside.indexOf(inside.reduce((a, b) => Math.max(a, b)));
    const lowest = inside.indexOf(inside.reduce((a, b) => Math.min(a, b)));
    now.fill(0);
    keep(last(k) + 1, live(k, last(k) + 1));
    levelsOf[calls.step[k]] = { total, stack, highest, lowest };
    return levelsOf[calls.step[k]];
  }

  /** @type {Model} */
  const model = {
    peak: profile.device.peak,
    siteOf,
    nbytes,
    length: calls.step.length,
    last,
    unit,
    graph: (k) => profile.graphs[calls.graph[k]],
    levels,
    bytes(k, position, category) {
      const { total, stack } = levels(k);
      return category ? stack[position * STACK.length + STACK.indexOf(category)] : total[position];
    },
    live,
    breakdown(counts, view) {
      const { of: numbers, at } = profile.sites[`in_${view}`];
      const byPlace = Map.groupBy(counts, ([item]) => numbers[at[siteOf[item]]]);
      const parts = [...byPlace].map(([place, of]) => ({
        ...rowOf(profile.places[view], place),
        nbytes: sum(of.map(([item, n]) => nbytes[item] * n)),
        storages: sum(of.map(([, n]) => n)),
        items: of.map(([item]) => item),
      }));
      return parts.sort((a, b) => b.nbytes - a.nbytes || (a.key < b.key ? -1 : 1));
    },
    describe(item) {
      return { ...rowOf(profile.sites, siteOf[item]), ...rowOf(items, item) };
    },
    event(k, position) {
      if (position > last(k)) return "between calls: what all of them left behind";
      if (!position) return "at the entry of the call: its inputs and what other calls left behind";
      const found = [...changes(k, position - 1, position)];
      const line = unit(k)?.line[position - 1] ?? 0;
      const text = profile.texts[model.graph(k).lines[line]];
      const where = `at line ${line}${text ? `: ${text}` : ""}`;
      const [item, sign] = found.at(-1) ?? [];
      if (item === undefined) return `memory of another device ${where}`;
      const { owner } = rowOf(items, item);
      const done = sign < 0 ? "freed" : found.length < 2 ? "allocated" : "handed over";
      return `${owner ?? "scratch memory"}, ${bytes(nbytes[item])}, ${done} ${where}`;
    },
    categories: STACK.filter((_, i) => categoryOf.includes(i)),
  };
  return model;
}

/** Where a position begins if every call is 1 wide, the pause after it included; it ends where the next one begins. @type {(model: Model, k: number, position: number) => number} */
const edge = ({ last }, k, position) => k + position / (last(k) + 2);

/** @type {(model: Model, x: number) => Position} */
function positionAt({ length, last }, x) {
  const k = Math.max(0, Math.min(length - 1, Math.floor(x)));
  return [k, Math.max(0, Math.min(last(k) + 1, Math.floor((x - k) * (last(k) + 2))))];
}

/** The first index whose value in a sorted array is above `x`. @type {(sorted: ArrayLike<number>, x: number, low?: number, high?: number) => number} */
function above(sorted, x, from = 0, to = sorted.length) {
  let [low, high] = [from, to];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Of the window [from, to) in `count` columns the positions with most and with least bytes, so that
 * peaks are exact at every zoom.
 * @type {(model: Model, from: number, to: number, count: number) => Record<"high" | "low", Position[]>}
 */
function columnsOf(model, from, to, count) {
  const high = Array.from({ length: count }, (_, c) => positionAt(model, from + ((c + 0.5) * (to - from)) / count));
  const low = [...high];
  // What only touches a column, to within rounding, does not fall into it.
  const column = (/** @type {number} */ x) => ((x - from) * count) / (to - from || 1);
  for (let k = positionAt(model, from)[0]; k < Math.min(to, model.length); k++) {
    const { total, highest, lowest } = model.levels(k);
    const isNarrow = Math.floor(column(k)) === Math.floor(column(k + 1));
    for (const p of isNarrow ? [highest, lowest, total.length - 1] : total.keys()) {
      const begin = Math.floor(column(edge(model, k, p)) + 1e-6);
      const end = Math.max(begin + 1, Math.ceil(column(edge(model, k, p + 1)) - 1e-6));
      for (let c = Math.max(0, begin); c < Math.min(count, end); c++) {
        if (total[p] > model.bytes(...high[c])) high[c] = [k, p];
        if (total[p] < model.bytes(...low[c])) low[c] = [k, p];
      }
    }
  }
  return { high, low };
}
