// What all pictures over time share: a canvas in CSS pixels, the window in time that pointer, wheel
// and keys move, and axes. Drawn by hand: see docs/report-page.md on why there is no library.

/** The first index from `low` to `high` whose value in a sorted array is above `x`. */
function above(sorted, x, low = 0, high = sorted.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A round number times a power of ten that is at least `least`. */
function roundUp(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((f) => f * power >= least * (1 - 1e-9)) * power;
}

/** A round distance, in binary units, between at most `most` marks from 0 to `top` bytes. */
function byteStep(top, most) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(top, 1)) / 10));
  return Math.max(1, roundUp(top / most / unit) * unit);
}

function canvas(className, label) {
  return el(`canvas.${className}`, { role: "img", "aria-label": label });
}

/** Clears a canvas and makes it so many CSS pixels large, which are the unit of what is drawn. */
function begin(node, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
  if (node.width !== size.width || node.height !== size.height) Object.assign(node, size);
  Object.assign(node.style, { width: `${width}px`, height: `${height}px` });
  const c = node.getContext("2d");
  c.reset();
  c.scale(ratio, ratio);
  c.textBaseline = "middle";
  c.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return c;
}

/**
 * Draws a picture once the page stands, when its box or the theme changes, and when what it returns
 * is called: then once a frame at most, and only where it can be seen.
 */
function drawn(box, draw) {
  let seen = false;
  const refresh = oncePerFrame(() => seen && box.clientWidth && draw());
  firstDrawings.push(() => box.clientWidth && draw());
  const look = (entries) => {
    seen = entries.at(-1).isIntersecting;
    refresh();
  };
  new IntersectionObserver(look, { rootMargin: "400px" }).observe(box);
  new ResizeObserver(refresh).observe(box);
  addEventListener("theme", refresh);
  return refresh;
}

/** The last of `boxes`, [what, [x, y, width, height]], in which a point is. */
function boxAt(boxes, px, py) {
  const isIn = ([, [x, y, w, h]]) => px >= x && px < x + w && py >= y && py < y + h;
  return boxes.findLast(isIn)?.[0];
}

/** Finds what is under the pointer: `hover(found, event)` shows a tooltip, `pick(found)`. */
function pointed(node, find, hover, pick) {
  const at = (event) => {
    const { left, top } = node.getBoundingClientRect();
    return find(event.clientX - left, event.clientY - top);
  };
  listen(node, {
    pointermove(event) {
      const found = at(event);
      if (found === undefined) hideTooltip();
      else hover(found, event);
    },
    pointerleave: hideTooltip,
    click(event) {
      const found = at(event);
      if (found !== undefined) pick?.(found);
    },
  });
}

/** The window [from, to) of [0, end) that is `width` pixels wide, and at least `least` long. */
class View {
  /** Calls `changed` where another window is shown. */
  constructor(end, changed) {
    Object.assign(this, { width: 1, changed });
    this.reset(end, 100);
  }

  reset(end, least) {
    Object.assign(this, { end, least, from: 0, to: end });
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
    const span = Math.min(this.end, Math.max(this.least, to - from));
    const start = Math.max(0, Math.min(this.end - span, from));
    if (start === this.from && start + span === this.to) return;
    Object.assign(this, { from: start, to: start + span });
    this.changed();
  }

  pan(pixels) {
    const by = pixels / this.scale;
    this.set(this.from + by, this.to + by);
  }

  /** `factor` above 1 shows less; what is at `x` stays there. */
  zoom(factor, x = this.width / 2) {
    const span = Math.max(this.least, (this.to - this.from) / factor);
    const from = this.time(x) - (x / this.width) * span;
    this.set(from, from + span);
  }

  whole() {
    this.set(0, this.end);
  }

  /** Brings [start, end) into the window; zooms only if it does not fit or cannot be seen. */
  reveal(start, end) {
    const size = end - start;
    const fits = size <= this.to - this.from && size * this.scale >= 4;
    if (fits && start >= this.from && end <= this.to) return;
    const span = fits ? this.to - this.from : Math.max(size * 5, this.least);
    this.set(start - (span - size) / 2, start + (span + size) / 2);
  }

  /** Times of grid lines about `room` pixels apart, at round distances. */
  ticks(room) {
    const step = roundUp(room / this.scale);
    const times = [];
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) times.push(t);
    return times;
  }
}

/**
 * Wheel, drag and pinch on an element, in which the window of `view` begins at `left`. A wheel alone
 * scrolls the page, as it does everywhere. `on` has `hover(x, y, event)`, `leave()`, `click(x, y)` and
 * may have `scroll(pixels)`.
 */
function interact(node, view, on, left = 0) {
  const pointers = new Map();
  let moved = 0;
  let pinch = null;

  const place = (event) => {
    const box = node.getBoundingClientRect();
    return [event.clientX - box.left - left, event.clientY - box.top];
  };
  const up = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    pinch = null;
    if (event.type === "pointercancel" || moved > 4) return;
    on.click(...place(event));
    // A finger cannot hover: a tap shows what hovering would.
    if (event.pointerType === "touch") on.hover(...place(event), event);
  };
  listen(node, {
    wheel(event) {
      const along = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!along && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 16 : 1;
      if (along) view.pan((event.deltaX || event.deltaY) * unit);
      else view.zoom(Math.exp(-event.deltaY * unit * 0.002), place(event)[0]);
      on.hover(...place(event), event);
    },
    pointerdown(event) {
      if (event.button !== 0) return;
      pointers.set(event.pointerId, place(event));
      [moved, pinch] = [0, null];
    },
    pointermove(event) {
      const now = place(event);
      const before = pointers.get(event.pointerId);
      if (!before) return on.hover(...now, event);
      moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      if (moved > 4 && !node.hasPointerCapture(event.pointerId)) {
        node.setPointerCapture(event.pointerId);
        on.leave();
      }
      pointers.set(event.pointerId, now);
      if (pointers.size === 2) {
        const [[ax], [bx]] = [...pointers.values()];
        const [span, middle] = [Math.max(10, Math.abs(ax - bx)), (ax + bx) / 2];
        if (pinch) {
          view.pan(pinch.middle - middle);
          view.zoom(span / pinch.span, middle);
        }
        pinch = { span, middle };
      } else if (moved > 4) {
        view.pan(before[0] - now[0]);
        if (event.pointerType === "mouse") on.scroll?.(before[1] - now[1]);
      }
    },
    pointerup: up,
    pointercancel: up,
    pointerleave: (event) => event.pointerType !== "touch" && on.leave(),
  });
}

/** A bar that shows which part of the whole the window is; a click or a drag moves it. */
function overview(view) {
  const thumb = el("div.overview-thumb");
  const bar = el("div.overview", { "aria-hidden": "true" }, thumb);
  const to = (event) => {
    if (event.type === "pointerdown") bar.setPointerCapture(event.pointerId);
    if (!bar.hasPointerCapture(event.pointerId)) return;
    const box = bar.getBoundingClientRect();
    const middle = ((event.clientX - box.left) / box.width) * view.end;
    const half = (view.to - view.from) / 2;
    view.set(middle - half, middle + half);
  };
  listen(bar, { pointerdown: to, pointermove: to });
  const draw = () => {
    thumb.style.left = `${(100 * view.from) / view.end}%`;
    thumb.style.width = `${(100 * (view.to - view.from)) / view.end}%`;
  };
  return { bar, draw };
}

/** Lines at round numbers of bytes up to `most`; how high each number of bytes is. */
function byteAxis(c, box, most) {
  const step = byteStep(most || 1, Math.max(2, Math.floor(box.height / 50)));
  const top = Math.ceil((most || 1) / step) * step;
  const y = (bytes) => box.top + box.height * (1 - bytes / top);
  c.textAlign = "right";
  for (let v = 0; v <= top; v += step) {
    c.fillStyle = color(v ? "--line" : "--line-strong");
    c.fillRect(box.left, Math.round(y(v)), box.width, 1);
    c.fillStyle = color("--text-2");
    c.fillText(v ? bytes(v) : "0", box.left - 8, y(v));
  }
  c.textAlign = "left";
  return y;
}

/** Labels of a window below a box, which `label(time, span)` words; "" is none. */
function timeAxis(c, box, view, label) {
  c.textAlign = "center";
  c.fillStyle = color("--text-2");
  let end = -Infinity;
  for (const t of view.ticks(90)) {
    const said = label(t, view.to - view.from);
    const half = c.measureText(said).width / 2;
    const x = Math.max(half, Math.min(box.left + view.x(t), box.left + box.width - half));
    if (!said || x - half < end) continue;
    c.fillText(said, x, box.top + box.height + 13);
    end = x + half + 8;
  }
  c.textAlign = "left";
}

/** Corners of steps: `y[i]` from `x[i]` to `x[i + 1]`. */
function steps(x, y) {
  return Array.from(y).flatMap((v, i) => [
    [x[i], v],
    [x[i + 1], v],
  ]);
}

/**
 * Areas of steps, one on the other: `layers` of colour and values, from the bottom. `x` are edges in
 * pixels, one more than there are values; `y` says how high a value is.
 */
function drawStack(c, x, layers, y) {
  let below = new Float64Array(x.length - 1);
  for (const [fill, values] of layers) {
    const top = below.map((b, i) => b + values[i]);
    c.beginPath();
    for (const [a, b] of steps(x, top.map(y))) c.lineTo(a, b);
    for (const [a, b] of steps(x, below.map(y)).reverse()) c.lineTo(a, b);
    c.fillStyle = fill;
    c.fill();
    below = top;
  }
}

function drawLine(c, x, values, y, style, width = 1.5) {
  c.beginPath();
  for (const [a, b] of steps(x, Array.from(values, y))) c.lineTo(a, b);
  c.strokeStyle = style;
  c.lineWidth = width;
  c.stroke();
}

/** A text, cut at its end where there is no room for it. */
function write(c, text, x, y, room) {
  const { width } = c.measureText(text);
  // The ellipsis takes some of the room.
  const fit = Math.floor((text.length * (room - 9)) / width);
  if (width <= room) c.fillText(text, x, y);
  else if (fit > 1) c.fillText(`${text.slice(0, fit)}…`, x, y);
}
