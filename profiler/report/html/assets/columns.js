// Memory over time, one entry a pixel column, exact at every zoom: each column has the highest
// and the lowest total of all positions that fall into it.
(function (memprof) {
  "use strict";

  // Columns by which an edge may be off: what only touches a column does not fall into it.
  const ROUNDING = 1e-6;

  /** The share of the run in which compiled calls were under way. */
  function busyShare(model) {
    const axis = new Axis(model, "time");
    let busy = 0;
    for (let k = 0; k < model.length; k++) {
      if (model.unit(k)) busy += axis.ends[k] - axis.starts[k];
    }
    return axis.end ? busy / axis.end : 0;
  }

  /** Where positions lie on the horizontal axis: by the clock, or all calls alike. */
  class Axis {
    constructor(model, mode) {
      this.model = model;
      this.mode = mode;
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

    /** [call, position] at `x`. */
    find(x) {
      const k = Math.max(0, Math.min(this.model.length, memprof.above(this.starts, x)) - 1);
      const last = this.model.lastInstant(k);
      if (x >= this.ends[k] && this.ends[k] < this.starts[k + 1]) return [k, last + 1];
      const part = (x - this.starts[k]) / (this.ends[k] - this.starts[k] || 1);
      return [k, Math.max(0, Math.min(last, Math.floor(part * (last + 1))))];
    }
  }

  /**
   * The window [from, to) in `count` columns.
   *
   * @returns {{high: Float64Array, low: Float64Array, call: Int32Array, position: Int32Array,
   *   categories: Float64Array[]}} of each column the highest and lowest total, where the highest
   *   is, and bytes by category there
   */
  function columns(model, axis, from, to, count) {
    const high = new Float64Array(count).fill(-1);
    const low = new Float64Array(count).fill(Infinity);
    const call = new Int32Array(count);
    const position = new Int32Array(count);
    const scale = count / (to - from || 1);
    const clamp = (c) => Math.max(0, Math.min(count - 1, c));
    const put = (c, bytes, k, p) => {
      if (bytes > high[c]) {
        high[c] = bytes;
        call[c] = k;
        position[c] = p;
      }
      if (bytes < low[c]) low[c] = bytes;
    };
    const span = (a, b, bytes, k, p) => {
      if (b < from || a >= to || (b === from && a !== b)) return;
      // An edge belongs to the column that it begins, so the end of a span is exclusive.
      const first = clamp(Math.floor((a - from) * scale + ROUNDING));
      const last = Math.max(first, clamp(Math.ceil((b - from) * scale - ROUNDING) - 1));
      for (let c = first; c <= last; c++) put(c, bytes, k, p);
    };
    const [first] = model.length ? axis.find(from) : [0];
    for (let k = first; k < model.length && axis.starts[k] <= to; k++) {
      const { totals, highest, lowest, rest, between } = model.extent(k);
      const a = axis.starts[k];
      const b = axis.ends[k];
      const column = Math.floor((a - from) * scale);
      if (a >= from && b < to && column === Math.floor((b - from) * scale)) {
        put(column, rest + totals[highest], k, highest);
        put(column, rest + totals[lowest], k, lowest);
      } else {
        const n = totals.length;
        for (let p = 0; p < n; p++) {
          span(a + ((b - a) * p) / n, a + ((b - a) * (p + 1)) / n, rest + totals[p], k, p);
        }
      }
      if (axis.starts[k + 1] > b) span(b, axis.starts[k + 1], between, k, totals.length);
    }
    const categories = model.categories.map(() => new Float64Array(count));
    const row = new Float64Array(categories.length);
    for (let c = 0; c < count; c++) {
      if (high[c] < 0) continue;
      model.categoryBytes(call[c], position[c], row);
      categories.forEach((values, i) => (values[c] = row[i]));
    }
    return { high, low, call, position, categories };
  }

  memprof.columns = { Axis, columns, busyShare };
})((globalThis.memprof ??= {}));
