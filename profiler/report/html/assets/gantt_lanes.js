// Lanes of bars on a canvas: at most one bar a pixel is drawn, and bars are found by binary search.

const ROW = 18;
const BAR = 16;
const HEAD = 20;

/** Lanes under each other, scrolled by `scroll` pixels. */
class Lanes {
  constructor(model, view) {
    Object.assign(this, { model, view, scroll: 0, hovered: null, selected: null });
    this.canvas = canvas("gantt-lanes-canvas", "Operations and calls");
    this.total = 4;
    for (const lane of model.lanes) {
      lane.top = this.total - 4;
      this.total += HEAD + lane.rows * ROW + 4;
    }
    this.measured = new Map();
  }

  draw(height) {
    const { view, model } = this;
    const c = begin(this.canvas, view.width, height);
    this.grid(c, height);
    this.pauses(c, height);
    const fills = model.payload.colors.map(color);
    const inks = fills.map(textOn);
    for (const lane of model.lanes) {
      const top = lane.top - this.scroll;
      if (top > height || top + HEAD + lane.rows * ROW < 0) continue;
      c.fillStyle = color("--line-strong");
      if (lane.top) c.fillRect(0, Math.round(top), view.width, 1);
      const first = Math.max(0, Math.floor((-top - HEAD) / ROW));
      const last = Math.min(lane.rows - 1, Math.floor((height - top - HEAD) / ROW));
      for (let r = first; r <= last; r++) {
        this.drawRow(c, lane, lane.byRow[r], top + HEAD + r * ROW, fills, inks);
      }
      this.label(c, lane, top);
    }
    this.outline(c, this.hovered, color("--text"), 1);
    this.outline(c, this.selected, color("--accent"), 2);
  }

  grid(c, height) {
    c.fillStyle = color("--line");
    for (const t of this.view.ticks(110)) {
      c.fillRect(Math.round(this.view.x(t)), 0, 1, height);
    }
  }

  /** Where the tracker was off, nothing was recorded: striped. */
  pauses(c, height) {
    c.fillStyle = color("--line-strong");
    c.globalAlpha = 0.4;
    for (const [from, to] of this.model.payload.pauses) {
      const a = Math.max(0, this.view.x(from));
      const b = Math.min(this.view.width, this.view.x(to));
      for (let y = 0; b > a && y < height; y += 6) c.fillRect(a, y, b - a, 1);
    }
    c.globalAlpha = 1;
  }

  label(c, lane, top) {
    const plain = c.font;
    c.font = `600 ${plain}`;
    c.fillStyle = color("--text");
    c.fillText(lane.name, 6, top + HEAD / 2 + 1);
    const width = c.measureText(lane.name).width;
    c.font = plain;
    c.fillStyle = color("--text-2");
    c.fillText(count(lane.start.length), 12 + width, top + HEAD / 2 + 1);
  }

  /**
   * At most one bar a pixel: where there are more, the next one drawn begins a pixel on.
   * One that failed is drawn before any other in its pixel.
   */
  drawRow(c, lane, row, y, fills, inks) {
    const { view, model } = this;
    const n = row.start.length;
    const failed = model.payload.colors.indexOf("--bar-failed-operation");
    let i = Math.max(0, above(row.start, view.from) - 1);
    let set = -1;
    while (i < n && row.start[i] <= view.to) {
      const a = Math.round(Math.max(-2, view.x(row.start[i])));
      const b = Math.max(a + 1, Math.round(Math.min(view.width + 2, view.x(row.end[i]))));
      let next = i + 1;
      let shown = i;
      if (b - a === 1) {
        next = Math.max(next, above(row.start, view.time(a + 0.5)));
        if (model.found) {
          while (shown < next - 1 && !model.isFound(lane, row.bars[shown])) shown += 1;
        }
      }
      const hides = !model.found && row.failedBefore[next] > row.failedBefore[i];
      const fill = hides ? failed : lane.color[row.bars[shown]];
      c.globalAlpha = model.isFound(lane, row.bars[shown]) ? 1 : 0.18;
      if (b >= 0) {
        if (fill !== set) c.fillStyle = fills[fill];
        set = fill;
        const width = b - a;
        c.fillRect(a, y + 1, width > 4 ? width - 1 : width, BAR);
        if (width > 26) {
          const left = Math.max(0, a);
          const name = lane.label[row.bars[i]];
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
    c.fillStyle = style;
    write(c, name, x, y, room, width);
  }

  outline(c, bar, style, thick) {
    if (!bar) return;
    const [lane, i] = bar;
    const top = this.extent(bar)[0] - this.scroll;
    const a = Math.max(-4, this.view.x(lane.start[i]));
    const b = Math.min(this.view.width + 4, this.view.x(lane.start[i] + lane.duration[i]));
    if (b < -2 || a > this.view.width + 2) return;
    c.strokeStyle = style;
    c.lineWidth = thick;
    c.strokeRect(a - 0.5, top + 0.5, Math.max(3, b - a), BAR + 1);
  }

  /** The bar at a place of the canvas, or the nearest of its row within two pixels; else null. */
  find(x, y) {
    const lane = this.model.lanes.findLast((l) => l.top <= y + this.scroll);
    const at = lane ? y + this.scroll - lane.top - HEAD : -1;
    const row = at < 0 ? null : lane.byRow[Math.floor(at / ROW)];
    if (!row) return null;
    const time = this.view.time(x);
    const next = above(row.start, time);
    if (row.end[next - 1] > time) return [lane, row.bars[next - 1]];
    // Infinity where there is none.
    const [before, after] = [
      time - (row.end[next - 1] ?? -Infinity),
      (row.start[next] ?? Infinity) - time,
    ];
    if (Math.min(before, after) > 2 / this.view.scale) return null;
    return [lane, row.bars[before <= after ? next - 1 : next]];
  }

  /** Where a bar is: top and bottom in the scrolled content. */
  extent([lane, i]) {
    const top = lane.top + HEAD + lane.row[i] * ROW;
    return [top, top + ROW];
  }
}
