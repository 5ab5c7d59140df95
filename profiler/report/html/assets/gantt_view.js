// The window in time that all panels share, and how pointer, wheel and keys move it.
(function (memprof) {
  "use strict";

  const LEAST = 100; // ns across the whole width

  class View {
    constructor(end) {
      this.end = end;
      this.from = 0;
      this.to = end;
      this.width = 1;
      this.listeners = [];
    }

    onChange(listener) {
      this.listeners.push(listener);
    }

    changed() {
      for (const listener of this.listeners) listener();
    }

    get scale() {
      return this.width / (this.to - this.from);
    }

    x(time) {
      return (time - this.from) * this.scale;
    }

    time(x) {
      return this.from + x / this.scale;
    }

    set(from, to) {
      const span = Math.min(this.end, Math.max(LEAST, to - from));
      const start = Math.max(0, Math.min(this.end - span, from));
      if (start === this.from && start + span === this.to) return;
      this.from = start;
      this.to = start + span;
      this.changed();
    }

    pan(pixels) {
      const by = pixels / this.scale;
      this.set(this.from + by, this.to + by);
    }

    /** `factor` above 1 shows less; what is at `x` stays there. */
    zoom(factor, x = this.width / 2) {
      const at = this.time(x);
      const span = Math.min(this.end, Math.max(LEAST, (this.to - this.from) / factor));
      const from = at - (x / this.width) * span;
      this.set(from, from + span);
    }

    whole() {
      this.set(0, this.end);
    }

    /** Brings [start, end) into the window; zooms only if it does not fit or cannot be seen. */
    reveal(start, end) {
      const span = this.to - this.from;
      const size = end - start;
      if (size > span || size * this.scale < 4) {
        const wanted = Math.max(size * 5, LEAST);
        this.set(start - (wanted - size) / 2, start + (wanted + size) / 2);
      } else if (start < this.from || end > this.to) {
        const from = start - (span - size) / 2;
        this.set(from, from + span);
      }
    }

    /** Times of grid lines about `room` pixels apart, at round distances. */
    ticks(room) {
      const raw = room / this.scale;
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].find((f) => f * power >= raw * (1 - 1e-9)) * power;
      const out = [];
      for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) out.push(t);
      return { step, times: out };
    }
  }

  /** A time on the axis, with as many digits as lines `step` apart need. */
  function tickLabel(time, step) {
    const [unit, size] = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]].find(
      ([, n]) => step >= n || n === 1,
    );
    // Long before the unit of the step is readable, seconds are what one looks for.
    if (size < 1e9 && time >= 1e9) {
      const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e9) - 1e-9));
      return `${(time / 1e9).toFixed(digits)} s`;
    }
    const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
    return `${(time / size).toFixed(digits)} ${unit}`;
  }

  /**
   * Wheel, drag and pinch on an element.
   *
   * @param {HTMLElement} node
   * @param {View} view
   * @param {object} on `hover(x, y, event)`, `leave()`, `click(x, y)`, `scroll(pixels)`
   */
  function interact(node, view, on) {
    const pointers = new Map();
    let moved = 0;
    let pinch = null;

    const place = (event) => {
      const box = node.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };

    node.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const unit = event.deltaMode === 1 ? 16 : 1;
        const [x] = place(event);
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
          view.pan((event.deltaX || event.deltaY) * unit);
        } else {
          view.zoom(Math.exp(-event.deltaY * unit * 0.002), x);
        }
        on.hover?.(...place(event), event);
      },
      { passive: false },
    );
    node.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pointers.set(event.pointerId, place(event));
      moved = 0;
      pinch = null;
    });
    node.addEventListener("pointermove", (event) => {
      const now = place(event);
      const before = pointers.get(event.pointerId);
      if (!before) {
        on.hover?.(...now, event);
        return;
      }
      moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      if (moved > 4 && !node.hasPointerCapture(event.pointerId)) {
        node.setPointerCapture(event.pointerId);
        on.leave?.();
      }
      pointers.set(event.pointerId, now);
      if (pointers.size === 2) {
        const [[ax], [bx]] = [...pointers.values()];
        const span = Math.max(10, Math.abs(ax - bx));
        const middle = (ax + bx) / 2;
        if (pinch) {
          view.pan(pinch.middle - middle);
          view.zoom(span / pinch.span, middle);
        }
        pinch = { span, middle };
      } else if (moved > 4) {
        view.pan(before[0] - now[0]);
        if (event.pointerType === "mouse") on.scroll?.(before[1] - now[1]);
      }
    });
    const up = (event) => {
      if (!pointers.delete(event.pointerId)) return;
      pinch = null;
      if (event.type === "pointerup" && moved <= 4) {
        on.click?.(...place(event));
        // A finger cannot hover: a tap shows what hovering would.
        if (event.pointerType === "touch") on.hover?.(...place(event), event);
      }
    };
    node.addEventListener("pointerup", up);
    node.addEventListener("pointercancel", up);
    node.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") on.leave?.();
    });
  }

  Object.assign(memprof, { GanttView: View, tickLabel, interact });
})((globalThis.memprof ??= {}));
