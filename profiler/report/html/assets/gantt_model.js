// Operations and compiled calls as bars: what is where in a lane, in which colour, and what is known
// of each. Bars come placed in rows (gantt_lanes.py), so that no two of a row overlap.
(function (memprof) {
  "use strict";

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
      const after = memprof.above(this.start, time);
      if (after > 0 && this.end[after - 1] > time) return after - 1;
      const before = after > 0 ? time - this.end[after - 1] : Infinity;
      const next = after < this.start.length ? this.start[after] - time : Infinity;
      if (Math.min(before, next) > slack) return -1;
      return before <= next ? after - 1 : after;
    }
  }

  class Lane {
    constructor(payload, data) {
      Object.assign(this, data);
      this.payload = payload;
      const rows = Array.from({ length: data.rows }, () => []);
      data.row.forEach((r, i) => rows[r].push(i));
      this.byRow = rows.map((bars) => new Row(bars, this));
    }
  }

  class GanttModel {
    /** `state` of the report has the live bytes of calls. */
    constructor(payload, state) {
      this.payload = payload;
      this.state = state;
      this.end = Math.max(1, payload.end);
      this.found = null;
      this.lanes = payload.lanes.map((data) => new Lane(payload, data));
      this.bars = this.lanes.reduce((n, lane) => n + lane.start.length, 0);
    }

    /** All bars in order of start, for stepping through them: [lane, index]. */
    get order() {
      this._order ??= this.lanes
        .flatMap((lane) => lane.start.map((_, i) => [lane, i]))
        .sort(([a, i], [b, j]) => a.start[i] - b.start[j]);
      return this._order;
    }

    /** Looks for bars by a part of their name; "" ends it. The number found. */
    find(text) {
      const wanted = text.trim().toLowerCase();
      this.found = null;
      if (!wanted) return this.bars;
      this.found = (name) => name.toLowerCase().includes(wanted);
      return this.lanes.reduce((n, lane) => n + lane.label.filter(this.found).length, 0);
    }

    isFound(lane, i) {
      return !this.found || this.found(lane.label[i]);
    }

    kind(lane, i) {
      return this.payload.kinds[lane.kind[i]];
    }

    /** What is known of a bar, as [label, value] rows. */
    facts(lane, i) {
      const { ns } = memprof.format;
      const kind = this.kind(lane, i);
      const rows = [["Kind", kind]];
      rows.push(["Begins at", instant(lane.start[i])], ["Duration", ns(lane.duration[i])]);
      const call = this.call(lane, i);
      if (call !== null) this.callFacts(call, rows);
      else if (kind !== "compilation") this.operationFacts(lane.detail[i], rows);
      return rows;
    }

    /** Of each a label, and a text, or bytes, or bytes before and after. */
    operationFacts(i, rows) {
      const { bytes } = memprof.format;
      for (const [label, value, after] of this.payload.operations[i]) {
        if (after === undefined) rows.push([label, typeof value === "string" ? value : bytes(value)]);
        else {
          const change = `${after < value ? "−" : "+"}${bytes(Math.abs(after - value))}`;
          rows.push([label, `${bytes(value)} → ${bytes(after)}`], ["Change", change]);
        }
      }
    }

    callFacts(k, rows) {
      const { format } = memprof;
      const { modes } = this.payload;
      const { models } = this.state;
      rows.push(["Call", `${format.count(k + 1)} of ${format.count(modes.length)}`]);
      rows.push(["Ran as", modes[k]]);
      for (const model of models) {
        const { totals, highest, rest, between } = model.extent(k);
        if (!(rest + totals[highest]) && !between) continue;
        const where = models.length > 1 ? ` on ${model.name}` : "";
        rows.push([`Live at entry${where}`, format.bytes(rest + totals[0])]);
        rows.push([`Peak inside${where}`, format.bytes(rest + totals[highest])]);
        rows.push([`Left behind${where}`, format.bytes(between)]);
      }
    }

    /** The call that a bar is, null for other bars. */
    call(lane, i) {
      const kind = this.kind(lane, i);
      return kind.endsWith("operation") || kind === "compilation" ? null : lane.detail[i];
    }
  }

  Object.assign(memprof, { GanttModel, instant });
})((globalThis.memprof ??= {}));
