// What is drawn: lanes of bars, the number of them at once, memory; each on a canvas of its own.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;
  const ROW = 18;
  const BAR = 16;
  const HEAD = 20;
  const FONT = 11;

  /** A canvas as large as its box, in device pixels. */
  class Canvas {
    constructor(className, label) {
      this.node = el(`canvas.${className}`, { role: "img", "aria-label": label });
      this.context = this.node.getContext("2d");
      this.width = 0;
      this.height = 0;
    }

    /** Clears, and sets the coordinate system to CSS pixels. */
    begin(width, height) {
      const ratio = globalThis.devicePixelRatio || 1;
      const w = Math.round(width * ratio);
      const h = Math.round(height * ratio);
      if (this.node.width !== w || this.node.height !== h) {
        this.node.width = w;
        this.node.height = h;
        this.node.style.width = `${width}px`;
        this.node.style.height = `${height}px`;
      }
      this.width = width;
      this.height = height;
      const c = this.context;
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, width, height);
      c.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
      c.textBaseline = "middle";
      return c;
    }
  }

  const color = (variable) => memprof.theme.color(variable);

  function grid(c, view, height) {
    const { step, times } = view.ticks(110);
    c.fillStyle = color("--line");
    for (const t of times) c.fillRect(Math.round(view.x(t)), 0, 1, height);
    return { step, times };
  }

  function drawAxis(canvas, view) {
    const c = canvas.begin(view.width, 22);
    const { step, times } = grid(c, view, 22);
    c.fillStyle = color("--text-2");
    for (const t of times) {
      const x = view.x(t);
      const text = memprof.tickLabel(t, step);
      if (x + 4 + c.measureText(text).width < view.width) c.fillText(text, x + 4, 11);
    }
  }

  /** Lanes under each other, scrolled by `scroll` pixels. */
  class Lanes {
    constructor(model, view) {
      this.model = model;
      this.view = view;
      this.canvas = new Canvas("gantt-lanes-canvas", "Operations and calls");
      this.scroll = 0;
      this.hovered = null;
      this.selected = null;
      let y = 0;
      this.tops = model.lanes.map((lane) => {
        const top = y;
        y += HEAD + lane.rows * ROW + 4;
        return top;
      });
      this.total = y + 4;
      this.measured = new Map();
    }

    draw(height) {
      const { view, model } = this;
      const c = this.canvas.begin(view.width, height);
      grid(c, view, height);
      this.pauses(c, height);
      const fills = model.colors.map(color);
      const inks = fills.map(memprof.theme.textOn);
      model.lanes.forEach((lane, n) => {
        const top = this.tops[n] - this.scroll;
        if (top > height || top + HEAD + lane.rows * ROW < 0) return;
        c.fillStyle = color("--line-strong");
        if (n) c.fillRect(0, Math.round(top), view.width, 1);
        const first = Math.max(0, Math.floor((-top - HEAD) / ROW));
        const last = Math.min(lane.rows - 1, Math.floor((height - top - HEAD) / ROW));
        for (let r = first; r <= last; r++) {
          this.drawRow(c, lane, lane.byRow[r], top + HEAD + r * ROW, fills, inks);
        }
        this.label(c, lane, top);
      });
      this.outline(c, this.hovered, color("--text"), 1);
      this.outline(c, this.selected, color("--accent"), 2);
    }

    /** Where the tracker was off, nothing was recorded: striped. */
    pauses(c, height) {
      c.strokeStyle = color("--line-strong");
      c.lineWidth = 1;
      for (const [from, to] of this.model.payload.pauses) {
        const a = Math.max(0, this.view.x(from));
        const b = Math.min(this.view.width, this.view.x(to));
        if (b <= a) continue;
        c.save();
        c.beginPath();
        c.rect(a, 0, b - a, height);
        c.clip();
        c.globalAlpha = 0.4;
        c.beginPath();
        for (let x = a - height; x < b; x += 10) {
          c.moveTo(x, height);
          c.lineTo(x + height, 0);
        }
        c.stroke();
        c.restore();
      }
    }

    label(c, lane, top) {
      c.font = `600 ${FONT}px ${getComputedStyle(document.body).fontFamily}`;
      c.fillStyle = color("--text");
      c.fillText(lane.name, 6, top + HEAD / 2 + 1);
      const width = c.measureText(lane.name).width;
      c.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
      c.fillStyle = color("--text-2");
      c.fillText(memprof.format.count(lane.start.length), 12 + width, top + HEAD / 2 + 1);
    }

    /**
     * At most one bar a pixel: where there are more, the next one drawn begins a pixel on.
     * One that failed is drawn before any other in its pixel.
     */
    drawRow(c, lane, row, y, fills, inks) {
      const { view, model } = this;
      const n = row.start.length;
      let i = Math.max(0, memprof.above(row.start, view.from) - 1);
      let set = -1;
      while (i < n && row.start[i] <= view.to) {
        const a = Math.round(Math.max(-2, view.x(row.start[i])));
        const b = Math.max(a + 1, Math.round(Math.min(view.width + 2, view.x(row.end[i]))));
        let next = i + 1;
        let shown = i;
        if (b - a === 1) {
          next = Math.max(next, memprof.above(row.start, view.time(a + 0.5)));
          if (model.found) {
            while (shown < next - 1 && !model.isFound(lane, row.bars[shown])) shown += 1;
          }
        }
        const hides = !model.found && row.failedBefore[next] > row.failedBefore[i];
        const fill = hides ? model.failed : lane.color[row.bars[shown]];
        c.globalAlpha = model.isFound(lane, row.bars[shown]) ? 1 : 0.18;
        if (b >= 0) {
          if (fill !== set) c.fillStyle = fills[fill];
          set = fill;
          const width = b - a;
          c.fillRect(a, y + 1, width > 4 ? width - 1 : width, BAR);
          if (width > 26) {
            const left = Math.max(0, a);
            const name = model.name(lane, row.bars[i]);
            this.text(c, name, left + 4, y + 1 + BAR / 2, b - left - 8, inks[fill]);
            set = -1;
          }
        }
        i = next;
      }
      c.globalAlpha = 1;
    }

    text(c, name, x, y, room, style) {
      let width = this.measured.get(name);
      if (width === undefined) this.measured.set(name, (width = c.measureText(name).width));
      let shown = name;
      if (width > room) {
        // The ellipsis takes some of the room.
        const fit = Math.floor((name.length * (room - 9)) / width);
        if (fit < 2) return;
        shown = `${name.slice(0, fit)}…`;
      }
      c.fillStyle = style;
      c.fillText(shown, x, y);
    }

    outline(c, bar, style, thick) {
      if (!bar) return;
      const [lane, i] = bar;
      const top = this.tops[this.model.lanes.indexOf(lane)] - this.scroll + HEAD + lane.row[i] * ROW;
      const a = Math.max(-4, this.view.x(lane.start[i]));
      const b = Math.min(this.view.width + 4, this.view.x(lane.start[i] + lane.duration[i]));
      if (b < -2 || a > this.view.width + 2) return;
      c.strokeStyle = style;
      c.lineWidth = thick;
      c.strokeRect(a - 0.5, top + 0.5, Math.max(3, b - a), BAR + 1);
    }

    /** The bar at a place of the canvas, as [lane, index], or null. */
    find(x, y) {
      const at = y + this.scroll;
      let n = memprof.above(this.tops, at) - 1;
      if (n < 0) return null;
      const lane = this.model.lanes[n];
      const r = Math.floor((at - this.tops[n] - HEAD) / ROW);
      if (at < this.tops[n] + HEAD || r >= lane.rows) return null;
      const row = lane.byRow[r];
      const found = row.find(this.view.time(x), 2 / this.view.scale);
      return found < 0 ? null : [lane, row.bars[found]];
    }

    /** Where a bar is: top and bottom in the scrolled content. */
    extent([lane, i]) {
      const top = this.tops[this.model.lanes.indexOf(lane)] + HEAD + lane.row[i] * ROW;
      return [top, top + ROW];
    }
  }

  /** The highest and lowest value in each pixel column. */
  function inColumns(curve, from, to, width) {
    const n = Math.max(1, Math.ceil(width));
    const high = new Float64Array(n).fill(-1);
    const low = new Float64Array(n).fill(Infinity);
    const scale = n / (to - from);
    curve.each(from, to, 1 / scale, (a, b, lowest, highest) => {
      if (b < from || a > to) return;
      const first = Math.max(0, Math.min(n - 1, Math.floor((a - from) * scale)));
      const last = Math.max(first, Math.min(n - 1, Math.ceil((b - from) * scale) - 1));
      for (let c = first; c <= last; c++) {
        if (highest > high[c]) high[c] = highest;
        if (lowest < low[c]) low[c] = lowest;
      }
    });
    return { high, low };
  }

  /** Levels up to `most` at a round distance, about three of them. */
  function marksTo(most, round) {
    const step = round(most, 3);
    const out = [];
    for (let v = step; v <= most * 1.02; v += step) out.push(v);
    return out;
  }

  function countStep(most, number) {
    const raw = most / number;
    const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
    return Math.max(1, [1, 2, 5, 10].find((f) => f * power >= raw) * power);
  }

  /** How many at once: one step curve, filled. */
  class Concurrency {
    constructor(model, view, whole) {
      this.model = model;
      this.view = view;
      this.whole = whole;
      this.canvas = whole
        ? new Canvas("gantt-overview-canvas", "How many run at once in the whole run")
        : new Canvas("gantt-count", "How many operations and calls run at once");
    }

    draw(height) {
      const { view } = this;
      const c = this.canvas.begin(view.width, height);
      const [from, to] = this.whole ? [0, view.end] : [view.from, view.to];
      if (!this.whole) grid(c, view, height);
      const { high } = inColumns(this.model.concurrency, from, to, view.width);
      const most = Math.max(1, ...high);
      const y = (v) => height - (v / most) * (height - (this.whole ? 4 : 18));
      c.fillStyle = color("--accent");
      c.globalAlpha = this.whole ? 0.35 : 0.5;
      high.forEach((v, x) => v > 0 && c.fillRect(x, y(v), 1, height - y(v)));
      c.globalAlpha = 1;
      if (this.whole) {
        const scale = view.width / view.end;
        const [a, b] = [view.from * scale, view.to * scale];
        c.fillStyle = color("--page");
        c.globalAlpha = 0.65;
        c.fillRect(0, 0, a, height);
        c.fillRect(b, 0, view.width - b, height);
        c.globalAlpha = 1;
        c.strokeStyle = color("--accent");
        c.strokeRect(a + 0.5, 0.5, Math.max(2, b - a - 1), height - 1);
        return;
      }
      for (const v of marksTo(most, countStep)) tag(c, String(v), y(v), view.width);
    }
  }

  /** A level's line and its value at the left. */
  function tag(c, text, y, width) {
    c.fillStyle = color("--line-strong");
    c.globalAlpha = 0.6;
    c.fillRect(0, Math.round(y), width, 1);
    c.globalAlpha = 0.8;
    c.fillStyle = color("--page");
    c.fillRect(2, y + 2, c.measureText(text).width + 6, 13);
    c.globalAlpha = 1;
    c.fillStyle = color("--text-2");
    c.fillText(text, 5, y + 9);
  }

  /** Curves of bytes over one scale. */
  class Memory {
    constructor(curves, view) {
      this.curves = curves; // {label, variable, source, shown}
      this.view = view;
      this.canvas = new Canvas("gantt-memory", "Memory over time");
    }

    draw(height) {
      const { view } = this;
      const c = this.canvas.begin(view.width, height);
      grid(c, view, height);
      const drawn = this.curves.filter((k) => k.shown);
      const data = drawn.map((k) => inColumns(k.source, view.from, view.to, view.width));
      let most = 1;
      for (const { high } of data) for (const v of high) if (v > most) most = v;
      const y = (v) => height - 2 - (v / most) * (height - 18);
      drawn.forEach((k, n) => this.line(c, color(k.variable), data[n], y, k.source));
      for (const v of marksTo(most, memprof.columns.byteStep)) tag(c, memprof.format.bytes(v), y(v), view.width);
    }

    /** The highest value of each column as a line, and what is below it in those that hold more. */
    line(c, style, { high, low }, y, source) {
      c.strokeStyle = style;
      c.fillStyle = style;
      c.lineWidth = 1.25;
      if (source.step === false && this.samples(c, y, source)) return;
      c.globalAlpha = 0.25;
      for (let x = 0; x < high.length; x++) {
        if (high[x] > low[x]) c.fillRect(x, y(high[x]), 1, y(low[x]) - y(high[x]));
      }
      c.globalAlpha = 1;
      c.beginPath();
      let before = -1;
      for (let x = 0; x < high.length; x++) {
        if (high[x] >= 0) {
          if (before >= 0) c.lineTo(x, y(before));
          if (before >= 0) c.lineTo(x, y(high[x]));
          else c.moveTo(x, y(high[x]));
        }
        before = high[x];
      }
      if (before >= 0) c.lineTo(high.length, y(before));
      c.stroke();
    }

    /** Samples joined by straight lines, as dots where there is room; false if they are too many. */
    samples(c, y, source) {
      const { view } = this;
      const first = Math.max(0, memprof.above(source.time, view.from) - 1);
      const last = Math.min(source.time.length, memprof.above(source.time, view.to) + 1);
      if (last - first > view.width) return false;
      c.beginPath();
      for (let i = first; i < last; i++) c.lineTo(view.x(source.time[i]), y(source.value[i]));
      c.stroke();
      if (last - first > view.width / 12) return true;
      for (let i = first; i < last; i++) {
        c.beginPath();
        c.arc(view.x(source.time[i]), y(source.value[i]), 2.5, 0, 7);
        c.fill();
      }
      return true;
    }
  }

  /** Small marks on the axis: what the ledger and checkpoints say. */
  class Marks {
    constructor(model, view) {
      this.view = view;
      this.marks = [...model.payload.marks].sort((a, b) => a.time - b.time);
      this.canvas = new Canvas("gantt-marks", "Marks of the ledger and checkpoints");
    }

    draw() {
      const c = this.canvas.begin(this.view.width, 14);
      c.fillStyle = color("--warn");
      for (const mark of this.marks) {
        const x = this.view.x(mark.time);
        if (x < -4 || x > this.view.width + 4) continue;
        c.beginPath();
        c.moveTo(x, 13);
        c.lineTo(x - 4, 4);
        c.lineTo(x + 4, 4);
        c.fill();
      }
    }

    /** The marks within some pixels of `x`. */
    near(x) {
      return this.marks.filter((m) => Math.abs(this.view.x(m.time) - x) <= 5);
    }
  }

  memprof.ganttPanels = { Lanes, Concurrency, Memory, Marks, Canvas, drawAxis };
})((globalThis.memprof ??= {}));
