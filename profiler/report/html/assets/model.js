// Live sets from the payload; see Note [How a live set is put together] in payload_live.py.
//
// A *position* of a call is an instant of its program, 0 to n, or n + 1: between the call and
// the next one. A call that was not observed has n = 0.

/** The program of a call that was not observed. */
const NOTHING = { line: [], before: [], after: [] };

/** What a column that has each value once has at a place. */
const cellAt = ({ of, at }, i) => of[at[i]];

/** What all of `columns` have at a place. */
function rowAt(columns, i) {
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values[i]]));
}

/** One device of the payload. */
class DeviceModel {
  constructor(payload, device) {
    const { device: name, calls, items } = device;
    Object.assign(this, { payload, device, name, calls, length: calls.step.length });
    this.graphs = new Map(payload.graphs.map((g) => [g.id, g]));
    this.sites = items.site;
    this.nbytes = items.nbytes;
    this._category = this.sites.map((s) => STACK.indexOf(this.categoryOf(s)));
    this._programs = new Map();
    this._extents = [];
  }

  _step(k) {
    return this.device.steps[this.calls.step[k]];
  }

  /** The program that call `k` runs, null if it was not observed. */
  unit(k) {
    return this.device.units[this._step(k).unit] ?? null;
  }

  /** The last instant of call `k`; its positions are 0 to this + 1. */
  lastInstant(k) {
    return this.unit(k)?.line.length ?? 0;
  }

  isBetween(k, position) {
    return position > this.lastInstant(k);
  }

  graph(k) {
    return this.graphs.get(this.calls.graph[k]);
  }

  /** Items that events of a program take out or put in, -1 for none. */
  _items(step, numbers) {
    const own = this.device.lists[step.own];
    return numbers.map((n) => (n < -1 ? own[-2 - n] : n));
  }

  /** What is live: a Map from item to count. */
  live(k, position) {
    const { lists } = this.device;
    const step = this._step(k);
    const counts = new Map();
    const add = (item, n) => item >= 0 && counts.set(item, (counts.get(item) ?? 0) + n);
    const between = this.isBetween(k, position);
    const pairs = lists[between ? step.between : step.rest];
    for (let i = 0; i < pairs.length; i += 2) add(pairs[i], pairs[i + 1]);
    if (between) return counts;
    const { before, after } = this.unit(k) ?? NOTHING;
    for (const item of lists[step.own]) add(item, 1);
    for (const item of this._items(step, after.slice(0, position))) add(item, 1);
    for (const item of this._items(step, before.slice(0, position))) add(item, -1);
    return new Map([...counts].filter(([, n]) => n));
  }

  /** Bytes by category of a list of items with counts, and their total. */
  _sum(list) {
    const pairs = this.device.lists[list];
    const by = new Float64Array(STACK.length);
    for (let i = 0; i < pairs.length; i += 2) {
      by[this._category[pairs[i]]] += this.nbytes[pairs[i]] * pairs[i + 1];
    }
    return { by, total: by.reduce((a, b) => a + b, 0) };
  }

  /**
   * What a program holds itself: bytes by category at each instant, one row an instant, their
   * totals, and where these are highest and lowest. Calls with the same inputs share it.
   */
  _program(step) {
    const { units, lists } = this.device;
    const key = `${step.own} ${step.unit}`;
    const known = this._programs.get(key);
    if (known) return known;
    const unit = units[step.unit] ?? NOTHING;
    const [before, after] = [this._items(step, unit.before), this._items(step, unit.after)];
    const now = new Float64Array(STACK.length);
    const totals = new Float64Array(unit.line.length + 1);
    const rows = new Float64Array(totals.length * now.length);
    const found = { rows, totals, highest: 0, lowest: 0 };
    let total = 0;
    const put = (item, sign) => {
      if (item < 0) return;
      now[this._category[item]] += sign * this.nbytes[item];
      total += sign * this.nbytes[item];
    };
    for (const item of lists[step.own]) put(item, 1);
    for (let i = 0; i < totals.length; i++) {
      if (i) put(before[i - 1], -1);
      if (i) put(after[i - 1], 1);
      rows.set(now, i * now.length);
      totals[i] = total;
      if (total > totals[found.highest]) found.highest = i;
      if (total < totals[found.lowest]) found.lowest = i;
    }
    this._programs.set(key, found);
    return found;
  }

  /** What a call's program holds, and bytes that are there beside it, and after the call. */
  extent(k) {
    const step = this._step(k);
    return (this._extents[this.calls.step[k]] ??= {
      ...this._program(step),
      beside: this._sum(step.rest),
      left: this._sum(step.between),
    });
  }

  /** Bytes by category at a position. */
  categoryBytes(k, position) {
    const { rows, beside, left } = this.extent(k);
    if (this.isBetween(k, position)) return left.by;
    return beside.by.map((n, c) => n + rows[position * STACK.length + c]);
  }

  /** Live bytes at a position. */
  bytes(k, position) {
    const { totals, beside, left } = this.extent(k);
    return this.isBetween(k, position) ? left.total : beside.total + totals[position];
  }

  /** One of the payload's views of a live set, the largest part first. */
  breakdown(live, view) {
    const { place: placeOf, places } = this.payload.sites;
    const byPlace = Map.groupBy(live, ([item]) => placeOf[view][this.sites[item]]);
    const found = [...byPlace].map(([place, of]) => ({
      ...rowAt(places[view], place),
      nbytes: of.reduce((n, [item, count]) => n + this.nbytes[item] * count, 0),
      storages: of.reduce((n, [, count]) => n + count, 0),
      items: of.map(([item]) => item),
    }));
    found.sort((a, b) => b.nbytes - a.nbytes || (a.key < b.key ? -1 : 1));
    const parts = found.filter((entry) => entry.known);
    const remainder = found.filter((entry) => !entry.known);
    const unattributed = remainder.reduce((n, e) => n + e.nbytes, 0);
    return { unattributed, parts, remainder };
  }

  /** The modules that a site is in, from the root; or why it is in none. */
  modulesOf(site) {
    const { place, places } = this.payload.sites;
    const { key, known, parts } = rowAt(places.module, place.module[site]);
    if (!known) return [`unattributed: ${key}`];
    return key.startsWith("(") ? [key] : parts;
  }

  /** What an item is, in words. */
  describe(item) {
    const known = rowAt(this.device.items, item);
    return { ...this.site(known.site), ...known };
  }

  categoryOf(site) {
    const { known, values } = this.payload.sites;
    return values[known.category[site]];
  }

  /** The categories of all that is ever live, from the bottom of a stack. */
  categories() {
    const used = new Set(this._category);
    return STACK.filter((_, i) => used.has(i));
  }

  /** What is known of a site, and its graph. */
  site(site) {
    const { known, values } = this.payload.sites;
    const found = Object.entries(known).map(([name, numbers]) => [name, values[numbers[site]]]);
    const { graph, ...all } = Object.fromEntries(found);
    return { ...all, graph: this.graphs.get(graph) };
  }

  /** The event that leads to a position: its line of generated code and the text of that. */
  eventBefore(k, position) {
    const unit = this.unit(k);
    if (!unit || position < 1 || this.isBetween(k, position)) return null;
    const i = position - 1;
    const [before, after] = this._items(this._step(k), [unit.before[i], unit.after[i]]);
    const line = unit.line[i];
    const statement = this.payload.texts[this.graphs.get(unit.graph).statements[line]];
    return { before, after, line, statement };
  }
}

// Memory over time, one entry a pixel column, exact at every zoom: each column has the highest
// and the lowest total of all positions that fall into it.

// Columns by which an edge may be off: what only touches a column does not fall into it.
const ROUNDING = 1e-6;

/** The share of the run in which compiled calls were under way. */
function busyShare(model) {
  const { start_ns: start, duration_ns: duration } = model.calls;
  const busy = duration.reduce((n, took, k) => n + (model.unit(k) ? took : 0), 0);
  return busy / (start.at(-1) + duration.at(-1) || 1);
}

/** Where positions lie on the horizontal axis: by the clock, or all calls alike. */
class Axis {
  constructor(model, mode) {
    this.model = model;
    const n = model.length;
    this.starts = new Float64Array(n + 1);
    this.ends = new Float64Array(n);
    const { start_ns: start, duration_ns: duration } = model.calls;
    let last = 0;
    for (let k = 0; k < n; k++) {
      if (mode === "calls") {
        const m = model.lastInstant(k) + 1;
        this.starts[k] = k;
        this.ends[k] = k + m / (m + 1);
        continue;
      }
      // Calls are in order of return; one that ran beside another is drawn after it.
      this.starts[k] = Math.max(start[k], last);
      last = this.ends[k] = Math.max(start[k] + duration[k], this.starts[k]);
    }
    this.starts[n] = mode === "calls" ? n : last;
  }

  get end() {
    return this.starts[this.model.length];
  }

  /** Where a position begins. */
  at(k, position) {
    if (this.model.isBetween(k, position)) return this.ends[k];
    const instants = this.model.lastInstant(k) + 1;
    return this.starts[k] + ((this.ends[k] - this.starts[k]) * position) / instants;
  }

  /** Where a position ends. */
  after(k, position) {
    return this.model.isBetween(k, position) ? this.starts[k + 1] : this.at(k, position + 1);
  }

  /** [call, position] at `x`. */
  find(x) {
    const k = Math.max(0, Math.min(this.model.length, above(this.starts, x)) - 1);
    const last = this.model.lastInstant(k);
    if (x >= this.ends[k] && this.ends[k] < this.starts[k + 1]) return [k, last + 1];
    const part = (x - this.starts[k]) / (this.ends[k] - this.starts[k] || 1);
    return [k, Math.max(0, Math.min(last, Math.floor(part * (last + 1))))];
  }
}

/** How many pixels a column of a window is wide: where calls have no room of their own, so many that
 * some calls stand together, for columns of a part of a step each would be stripes. */
function columnWidth(axis, { from, to, width }) {
  const [first] = axis.find(from);
  const [last] = axis.find(to);
  const each = width / (last - first + 1);
  return each < ROOM ? Math.max(3, Math.ceil(ROOM * each)) : 1;
}

/** Of the window [from, to) in `count` columns the highest and lowest total of each, which call and
 * position the highest is, and bytes by category there; `floor` has those of the lowest. */
function pixelColumns(model, axis, from, to, count) {
  const high = new Float64Array(count).fill(-1);
  const low = new Float64Array(count).fill(Infinity);
  const call = new Int32Array(count);
  const position = new Int32Array(count);
  const lowest = Array(count).fill(null);
  const scale = count / (to - from || 1);
  const clamp = (c) => Math.max(0, Math.min(count - 1, c));
  const span = (a, b, bytes, k, p) => {
    if (b < from || a >= to || (b === from && a !== b)) return;
    // An edge belongs to the column that it begins, so the end of a span is exclusive.
    const first = clamp(Math.floor((a - from) * scale + ROUNDING));
    const last = Math.max(first, clamp(Math.ceil((b - from) * scale - ROUNDING) - 1));
    for (let c = first; c <= last; c++) {
      if (bytes > high[c]) [high[c], call[c], position[c]] = [bytes, k, p];
      if (bytes < low[c]) [low[c], lowest[c]] = [bytes, [k, p]];
    }
  };
  const [first] = model.length ? axis.find(from) : [0];
  for (let k = first; k < model.length && axis.starts[k] <= to; k++) {
    const { totals, highest, lowest: least, beside, left } = model.extent(k);
    const a = axis.starts[k];
    const b = axis.ends[k];
    const at = (p) => a + ((b - a) * p) / totals.length;
    const column = Math.floor((a - from) * scale);
    const inOne = a >= from && b < to && column === Math.floor((b - from) * scale);
    for (const p of inOne ? [highest, least] : totals.keys()) {
      span(at(p), at(p + 1), beside.total + totals[p], k, p);
    }
    if (axis.starts[k + 1] > b) span(b, axis.starts[k + 1], left.total, k, totals.length);
  }
  const stack = (at) => {
    const categories = STACK.map(() => new Float64Array(count));
    for (let c = 0; c < count; c++) {
      if (high[c] < 0) continue;
      const row = model.categoryBytes(...at(c));
      categories.forEach((values, i) => (values[c] = row[i]));
    }
    return categories;
  };
  const categories = stack((c) => [call[c], position[c]]);
  const floor = stack((c) => lowest[c]);
  return { high, low: low.map((v, c) => Math.min(v, high[c])), call, position, categories, floor };
}
