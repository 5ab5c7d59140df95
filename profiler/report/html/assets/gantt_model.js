// The payload as things to look up: what is where in a lane, and bytes at a time.
(function (memprof) {
  "use strict";

  const OPERATION_COLORS = 7;

  /** The first index whose value in a sorted array is above `x`. */
  function above(sorted, x) {
    let low = 0;
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** An instant: of a long run with more digits than a duration needs. */
  function instant(ns) {
    return ns < 1e9 ? memprof.format.ns(ns) : `${(ns / 1e9).toFixed(6)} s`;
  }

  /** The bars of one row: sorted, none overlaps another. */
  class Row {
    constructor(bars, lane) {
      this.bars = Int32Array.from(bars);
      this.start = Float64Array.from(bars, (i) => lane.start[i]);
      this.end = Float64Array.from(bars, (i) => lane.start[i] + lane.duration[i]);
      const failed = lane.payload.kinds.indexOf("failed operation");
      this.failedBefore = new Int32Array(bars.length + 1);
      bars.forEach((i, n) => {
        this.failedBefore[n + 1] = this.failedBefore[n] + (lane.kind[i] === failed);
      });
    }

    /** Position in this row of the bar at `time`, or of the nearest within `slack`; else -1. */
    find(time, slack) {
      const after = above(this.start, time);
      if (after > 0 && this.end[after - 1] > time) return after - 1;
      const before = after > 0 ? time - this.end[after - 1] : Infinity;
      const next = after < this.start.length ? this.start[after] - time : Infinity;
      if (Math.min(before, next) > slack) return -1;
      return before <= next ? after - 1 : after;
    }
  }

  class Lane {
    constructor(payload, data, top) {
      Object.assign(this, data);
      this.payload = payload;
      this.top = top;
      const rows = Array.from({ length: data.rows }, () => []);
      data.row.forEach((r, i) => rows[r].push(i));
      this.byRow = rows.map((bars) => new Row(bars, this));
    }
  }

  /** Live bytes of one device by call; calls of a kind share a row of instants. */
  class Live {
    constructor(payload, data) {
      this.device = data.device;
      this.kind = data.kind;
      this.kinds = data.kinds.map(({ totals, between }) => ({
        totals,
        between,
        // A program can have more instants than a call has room for arguments.
        high: totals.reduce((a, b) => Math.max(a, b)),
        low: totals.reduce((a, b) => Math.min(a, b)),
      }));
      const n = data.kind.length;
      this.start = new Float64Array(n + 1);
      this.end = new Float64Array(n);
      let last = 0;
      for (let k = 0; k < n; k++) {
        // Calls are in order of return; memory of one that ran beside another is shown after it.
        this.start[k] = Math.max(payload.calls.start[k], last);
        last = this.end[k] = Math.max(payload.calls.end[k], this.start[k]);
      }
      this.start[n] = Math.max(last, payload.end);
    }

    /** Bytes at a time, null before the first call. */
    at(time) {
      const k = above(this.start, time) - 1;
      if (k < 0 || !this.kind.length) return null;
      const call = Math.min(k, this.kind.length - 1);
      const { totals, between } = this.kinds[this.kind[call]];
      if (time >= this.end[call]) return between;
      const part = (time - this.start[call]) / (this.end[call] - this.start[call] || 1);
      return totals[Math.min(totals.length - 1, Math.floor(part * totals.length))];
    }

    /** Calls `put(from, to, lowest, highest)` for everything between two times. */
    each(from, to, smallest, put) {
      const n = this.kind.length;
      for (let k = Math.max(0, above(this.start, from) - 1); k < n && this.start[k] <= to; k++) {
        const kind = this.kinds[this.kind[k]];
        const a = this.start[k];
        const b = this.end[k];
        if (b - a < smallest) {
          put(a, b, kind.low, kind.high);
        } else {
          const { totals } = kind;
          const width = (b - a) / totals.length;
          for (let i = 0; i < totals.length; i++) {
            put(a + i * width, a + (i + 1) * width, totals[i], totals[i]);
          }
        }
        if (this.start[k + 1] > b) put(b, this.start[k + 1], kind.between, kind.between);
      }
    }
  }

  /** A measured curve: steps, or samples with nothing known between them. */
  class Curve {
    constructor(data, end) {
      Object.assign(this, data);
      this.time = Float64Array.from(data.time);
      this.last = end;
    }

    at(time) {
      const i = above(this.time, time) - 1;
      if (i < 0) return null;
      if (this.step) return this.value[i];
      // Between samples the nearest is the best that is known.
      const j = Math.min(i + 1, this.time.length - 1);
      return time - this.time[i] <= this.time[j] - time ? this.value[i] : this.value[j];
    }

    each(from, to, _smallest, put) {
      const n = this.time.length;
      for (let i = Math.max(0, above(this.time, from) - 1); i < n && this.time[i] <= to; i++) {
        const until = i + 1 < n ? this.time[i + 1] : this.step ? this.last : this.time[i];
        put(this.time[i], until, this.value[i], this.value[i]);
      }
    }
  }

  class Model {
    constructor(payload) {
      this.payload = payload;
      this.end = Math.max(1, payload.end);
      this.found = null;
      this.lanes = [];
      let top = 0;
      for (const data of payload.lanes) {
        const lane = new Lane(payload, data, top);
        this.lanes.push(lane);
        top += lane.rows;
      }
      this.bars = this.lanes.reduce((n, lane) => n + lane.start.length, 0);
      this.chooseColors();
      const { time, count } = payload.concurrency;
      this.concurrency = new Curve({ name: "at once", step: true, time, value: count }, this.end);
      this.live = payload.calls.start.length ? payload.devices.map((d) => new Live(payload, d)) : [];
      this.curves = payload.curves.map((c) => new Curve(c, this.end));
    }

    /**
     * What each bar is coloured by: calls by their kind, operations by their name, as far as
     * there are colours; those with most time have one of their own.
     */
    chooseColors() {
      const { kinds, strings } = this.payload;
      const plain = kinds.indexOf("operation");
      this.failed = kinds.indexOf("failed operation");
      const time = new Map();
      for (const lane of this.lanes) {
        lane.kind.forEach((kind, i) => {
          if (kind !== plain) return;
          const name = lane.name_of[i];
          time.set(name, (time.get(name) ?? 0) + lane.duration[i]);
        });
      }
      const named = [...time].sort((a, b) => b[1] - a[1]).slice(0, OPERATION_COLORS);
      const own = new Map(named.map(([name], i) => [name, kinds.length + i]));
      this.colors = [
        ...kinds.map((kind) => `--bar-${kind.replaceAll(" ", "-")}`),
        ...named.map((_, i) => `--op-${i}`),
      ];
      const counts = new Array(this.colors.length).fill(0);
      for (const lane of this.lanes) {
        lane.color = lane.kind.map((kind, i) =>
          kind === plain ? (own.get(lane.name_of[i]) ?? plain) : kind,
        );
        for (const c of lane.color) counts[c] += 1;
      }
      const others = own.size < time.size ? "other operations" : "operation";
      const entries = (list) =>
        list
          .map(([label, c]) => ({ label, variable: this.colors[c], count: counts[c] }))
          .filter((entry) => entry.count > 0);
      const ofOperations = (kind) => kind.endsWith("operation");
      this.legend = [
        [
          "Operations",
          entries([
            ...named.map(([name]) => [strings[name], own.get(name)]),
            [others, plain],
            ["failed", this.failed],
          ]),
        ],
        ["Compiled calls", entries(kinds.map((k, i) => [k, i]).filter(([k]) => !ofOperations(k)))],
      ].filter(([, list]) => list.length > 0);
    }

    /** All bars in order of start, for stepping through them: [lane, index]. */
    get order() {
      if (!this._order) {
        this._order = this.lanes.flatMap((lane) => lane.start.map((_, i) => [lane, i]));
        this._order.sort(([a, i], [b, j]) => a.start[i] - b.start[j] || a.top - b.top || i - j);
      }
      return this._order;
    }

    /** The largest tensors of the snapshot nearest to `time`, if one is within `slack`. */
    largestNear(time, slack) {
      const { time: times, tensors } = this.payload.largest;
      const after = above(times, time);
      const [best] = [after - 1, after]
        .filter((i) => i >= 0 && i < times.length && Math.abs(times[i] - time) <= slack)
        .sort((a, b) => Math.abs(times[a] - time) - Math.abs(times[b] - time));
      return best === undefined ? [] : tensors[best].map(([t, n]) => [this.payload.strings[t], n]);
    }

    /** Looks for bars by a part of their name; "" ends it. The number found. */
    find(text) {
      const wanted = text.trim().toLowerCase();
      this.found = null;
      if (!wanted) return this.bars;
      this.found = this.payload.strings.map((name) => name.toLowerCase().includes(wanted));
      return this.lanes.reduce((n, l) => n + l.name_of.filter((name) => this.found[name]).length, 0);
    }

    isFound(lane, i) {
      return !this.found || this.found[lane.name_of[i]];
    }

    name(lane, i) {
      return this.payload.strings[lane.name_of[i]];
    }

    kind(lane, i) {
      return this.payload.kinds[lane.kind[i]];
    }

    /** What is known of a bar, as [label, value] rows. */
    facts(lane, i) {
      const { format } = memprof;
      const rows = [
        ["Kind", this.kind(lane, i)],
        ["Begins at", instant(lane.start[i])],
        ["Duration", format.ns(lane.duration[i])],
      ];
      const detail = lane.detail[i];
      const kind = this.kind(lane, i);
      if (kind.endsWith("operation")) this.operationFacts(detail, rows);
      else if (kind !== "compilation") this.callFacts(detail, rows);
      return rows;
    }

    operationFacts(i, rows) {
      const { format } = memprof;
      const { operations, strings } = this.payload;
      const known = (columns) => columns && columns[0][i] >= 0 && columns[1][i] >= 0;
      const change = (before, after) => `${after < before ? "−" : "+"}${format.bytes(Math.abs(after - before))}`;
      if (operations.running.includes(i)) rows.push(["Ends", "after the record"]);
      rows.push(["In", strings[operations.lane[i]]]);
      if (known(operations.tensor_bytes)) {
        const [before, after] = operations.tensor_bytes.map((c) => c[i]);
        rows.push(["Tensors", `${format.bytes(before)} → ${format.bytes(after)}`]);
        rows.push(["Change", change(before, after)]);
      }
      for (const [device, m] of Object.entries(operations.memory)) {
        if (m.before[i] >= 0 && m.after[i] >= 0) {
          const what = device === "cpu" ? "Resident" : `Allocated on ${device}`;
          rows.push([what, `${format.bytes(m.before[i])} → ${format.bytes(m.after[i])}`]);
          rows.push(["Change", change(m.before[i], m.after[i])]);
        }
        if (m.peak[i] >= 0) {
          rows.push([`Peak inside${m.exact[i] ? "" : ", at least"}`, format.bytes(m.peak[i])]);
        }
      }
    }

    callFacts(i, rows) {
      const { format } = memprof;
      const { calls, strings } = this.payload;
      rows.push(["Call", `${format.count(calls.first + i + 1)} of ${format.count(calls.logged)}`], ["Ran as", strings[calls.mode[i]]]);
      for (const live of this.live) {
        const { totals, between, high } = live.kinds[live.kind[i]];
        const where = this.live.length > 1 ? ` on ${live.device}` : "";
        if (!high && !between) continue;
        rows.push([`Live at entry${where}`, format.bytes(totals[0])]);
        rows.push([`Peak inside${where}`, format.bytes(high)]);
        rows.push([`Left behind${where}`, format.bytes(between)]);
      }
    }
  }

  memprof.GanttModel = Model;
  Object.assign(memprof, { above, instant });
})((globalThis.memprof ??= {}));
