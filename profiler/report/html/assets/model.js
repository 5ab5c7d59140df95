// Live sets from the payload; see Note [How a live set is put together] in payload_live.py.
//
// A *position* of a call is an instant of its program, 0 to n, or n + 1: between the call and
// the next one. A call that was not observed has n = 0.
(function (memprof) {
  "use strict";

  const FREE = 1;

  /** One device of the payload. */
  class DeviceModel {
    constructor(payload, device) {
      this.payload = payload;
      this.device = device;
      this.name = device.device;
      this.categories = payload.categories;
      this.calls = device.calls;
      this.length = device.calls.step.length;
      this.graphs = new Map(payload.graphs.map((g) => [g.id, g]));
      this._sums = new Map();
      this._curves = new Map();
      this._category = payload.sites.category;
    }

    string(i) {
      return i < 0 ? null : this.payload.strings[i];
    }

    /** The program that call `k` runs, null if it was not observed. */
    unit(k) {
      const unit = this.device.steps.unit[this.calls.step[k]];
      return unit < 0 ? null : this.device.units[unit];
    }

    /** The last instant of call `k`; its positions are 0 to this + 1. */
    lastInstant(k) {
      const unit = this.unit(k);
      return unit ? unit.events.kind.length : 0;
    }

    isBetween(k, position) {
      return position > this.lastInstant(k);
    }

    graph(k) {
      return this.graphs.get(this.calls.graph[k]);
    }

    /** What is live: a Map from item to count. */
    live(k, position) {
      const { steps, lists } = this.device;
      const step = this.calls.step[k];
      const out = new Map();
      const add = (item, count) => out.set(item, (out.get(item) ?? 0) + count);
      const pairs = lists[this.isBetween(k, position) ? steps.between[step] : steps.rest[step]];
      for (let i = 0; i < pairs.length; i += 2) add(pairs[i], pairs[i + 1]);
      if (!this.isBetween(k, position)) {
        for (const item of this._own(step, position).values()) add(item, 1);
      }
      return out;
    }

    /** Items by storage of the call's own program. */
    _own(step, instant) {
      const { steps, lists, units } = this.device;
      const own = new Map();
      if (steps.unit[step] < 0) return own;
      const { entry, events } = units[steps.unit[step]];
      const first = lists[steps.own[step]];
      entry.forEach((storage, i) => own.set(storage, first[i]));
      for (let i = 0; i < instant; i++) {
        if (events.kind[i] === FREE) own.delete(events.storage[i]);
        else if (events.item[i] >= 0) own.set(events.storage[i], events.item[i]);
      }
      return own;
    }

    /** Bytes by category of a list of items, with or without counts. */
    _sum(list, paired) {
      let sum = this._sums.get(list);
      if (!sum) {
        const { site, nbytes } = this.device.items;
        const items = this.device.lists[list];
        sum = new Float64Array(this.categories.length);
        for (let i = 0; i < items.length; i += paired ? 2 : 1) {
          const item = items[i];
          sum[this._category[site[item]]] += nbytes[item] * (paired ? items[i + 1] : 1);
        }
        this._sums.set(list, sum);
      }
      return sum;
    }

    /**
     * What a program holds itself: bytes by category at each instant, one row an instant, their
     * totals, and where these are highest and lowest. Calls with the same inputs share it.
     */
    _curve(step) {
      const { steps, units } = this.device;
      const key = steps.own[step] * (units.length + 1) + steps.unit[step] + 1;
      let curve = this._curves.get(key);
      if (!curve) {
        curve = steps.unit[step] < 0 ? this._flat() : this._program(step);
        this._curves.set(key, curve);
      }
      return curve;
    }

    _flat() {
      const rows = new Float64Array(this.categories.length);
      return { rows, totals: new Float64Array(1), highest: 0, lowest: 0 };
    }

    _program(step) {
      const { steps, units, lists, items } = this.device;
      const { entry, events, storages } = units[steps.unit[step]];
      const width = this.categories.length;
      const n = events.kind.length;
      const rows = new Float64Array((n + 1) * width);
      const totals = new Float64Array(n + 1);
      const at = new Int32Array(storages).fill(-1);
      const own = lists[steps.own[step]];
      const now = Float64Array.from(this._sum(steps.own[step], false));
      entry.forEach((storage, i) => (at[storage] = own[i]));
      let total = now.reduce((a, b) => a + b, 0);
      rows.set(now, 0);
      totals[0] = total;
      let highest = 0;
      let lowest = 0;
      for (let i = 0; i < n; i++) {
        const storage = events.storage[i];
        const next = events.item[i];
        if (events.kind[i] === FREE || next >= 0) {
          const before = at[storage];
          if (before >= 0) {
            now[this._category[items.site[before]]] -= items.nbytes[before];
            total -= items.nbytes[before];
          }
          at[storage] = events.kind[i] === FREE ? -1 : next;
          if (at[storage] >= 0) {
            now[this._category[items.site[next]]] += items.nbytes[next];
            total += items.nbytes[next];
          }
        }
        rows.set(now, (i + 1) * width);
        totals[i + 1] = total;
        if (total > totals[highest]) highest = i + 1;
        if (total < totals[lowest]) lowest = i + 1;
      }
      return { rows, totals, highest, lowest };
    }

    /** Bytes by category at a position, written to `out`. */
    categoryBytes(k, position, out) {
      const { steps } = this.device;
      const step = this.calls.step[k];
      if (this.isBetween(k, position)) {
        out.set(this._sum(steps.between[step], true));
        return out;
      }
      const rest = this._sum(steps.rest[step], true);
      const { rows } = this._curve(step);
      const width = out.length;
      for (let c = 0; c < width; c++) out[c] = rest[c] + rows[position * width + c];
      return out;
    }

    /** What all positions of a call hold beside its own program's memory, and what that does. */
    extent(k) {
      const { steps } = this.device;
      const step = this.calls.step[k];
      const curve = this._curve(step);
      return {
        totals: curve.totals,
        highest: curve.highest,
        lowest: curve.lowest,
        rest: total(this._sum(steps.rest[step], true)),
        between: total(this._sum(steps.between[step], true)),
      };
    }

    /** Live bytes at a position. */
    bytes(k, position) {
      const { steps } = this.device;
      const step = this.calls.step[k];
      if (this.isBetween(k, position)) return total(this._sum(steps.between[step], true));
      return total(this._sum(steps.rest[step], true)) + this._curve(step).totals[position];
    }

    /**
     * One view of a live set, the largest part first.
     *
     * @param {Map} live from `live()`
     * @param {string} view one of the payload's views
     */
    breakdown(live, view) {
      const { site, nbytes } = this.device.items;
      const places = this.payload.sites[`by_${view}`];
      const names = this.payload.sites.names[view];
      const sums = new Map();
      let all = 0;
      for (const [item, count] of live) {
        const place = places[site[item]];
        let entry = sums.get(place);
        if (!entry) sums.set(place, (entry = { place, nbytes: 0, storages: 0, items: [] }));
        entry.nbytes += nbytes[item] * count;
        entry.storages += count;
        entry.items.push(item);
        all += nbytes[item] * count;
      }
      const parts = [];
      const remainder = [];
      for (const entry of sums.values()) {
        if (entry.place >= 0) {
          entry.key = this.string(names.key[entry.place]);
          entry.note = this.string(names.note[entry.place]);
          entry.graph = names.graph[entry.place];
          parts.push(entry);
        } else {
          entry.key = this.string(this.payload.sites.reasons[-1 - entry.place]);
          remainder.push(entry);
        }
      }
      const order = (a, b) => b.nbytes - a.nbytes || (a.key < b.key ? -1 : 1);
      parts.sort(order);
      remainder.sort(order);
      const sum = (entries) => entries.reduce((n, e) => n + e.nbytes, 0);
      return {
        total: all,
        attributed: sum(parts),
        unattributed: sum(remainder),
        parts,
        remainder,
      };
    }

    /** What an item is, in words. */
    describe(item) {
      const { items } = this.device;
      const hold = ["call", "persistent", "saved", "handed_on"][items.hold[item]];
      return this.describeSite(items.site[item], items.nbytes[item], items.owner[item], hold);
    }

    /** What memory of a site is, in words. */
    describeSite(s, nbytes, owner, hold) {
      const { sites } = this.payload;
      const node = sites.by_node[s];
      const [file, line, fn, code] = this.frame(sites.frame[s]);
      return {
        site: s,
        nbytes,
        owner: this.string(owner),
        hold,
        category: this.categories[sites.category[s]],
        node: node < 0 ? null : this.string(sites.names.node.key[node]),
        op: this.string(sites.op[s]),
        module: this.string(sites.module[s]),
        fqn: this.string(sites.fqn[s]),
        outside: this.string(sites.outside[s]),
        graph: this.graphs.get(sites.graph[s]),
        location: file === null ? null : `${file}:${line}`,
        function: fn,
        code,
      };
    }

    /** [file, line, function, code] of a source line, nulls for -1. */
    frame(i) {
      if (i < 0) return [null, null, null, null];
      const [file, line, fn, code] = this.payload.frames[i];
      return [this.string(file), line, this.string(fn), this.string(code)];
    }

    /** The event that leads to a position: its line of generated code and the text of that. */
    eventBefore(k, position) {
      const unit = this.unit(k);
      if (!unit || position < 1 || this.isBetween(k, position)) return null;
      const { kind, line, item, storage } = unit.events;
      const i = position - 1;
      // What is freed is what was there before; also where a reuse leaves a storage as it is.
      const before = () => this._own(this.calls.step[k], i).get(storage[i]) ?? -1;
      const text = this.graphs.get(unit.graph).statements[line[i]];
      return {
        kind: ["alloc", "free", "reuse"][kind[i]],
        line: line[i],
        statement: text === undefined ? null : this.string(text),
        item: item[i] >= 0 ? item[i] : before(),
      };
    }
  }

  function total(sums) {
    let n = 0;
    for (let i = 0; i < sums.length; i++) n += sums[i];
    return n;
  }

  memprof.DeviceModel = DeviceModel;
})((globalThis.memprof ??= {}));
