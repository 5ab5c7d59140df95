// Memory over time: stacked by category, with the choice of an instant on it; and curves.

const PLOT = { left: 70, right: 14, top: 22, bottom: 24 };
/** Pixels of a call below which it cannot be told from the next, and calls that stand together then. */
const ROOM = 4;
const LINES = ["accent", "cat-temporary", "cat-gradient", "cat-output", "cat-activation"];

/** What these margins leave of a box of the page, in whole pixels. */
function inside({ clientWidth, clientHeight }) {
  const width = Math.max(50, Math.floor(clientWidth - PLOT.left - PLOT.right));
  return { ...PLOT, width, height: clientHeight - PLOT.top - PLOT.bottom };
}

/** Memory of the device of a `state` (report.js) by category, and the choice of its instant. */
function timeline(state, root) {
  let axis = null;
  // Where compiling took most of the time, the clock would show little else; where calls are many,
  // it makes stripes of them, of which none can be told from the next.
  const narrow = state.model.length * ROOM > innerWidth;
  let mode = narrow || busyShare(state.model) < 0.3 ? "calls" : "time";
  let shown = null;
  const view = new View(1, () => refresh());
  const whole = overview(view);
  const picture = canvas("timeline-canvas", "Memory over time by category");
  const plot = el("div.timeline-plot", {}, picture);
  const cursor = el("div.cursor", { hidden: true });
  const peak = el("div.timeline-peak", { hidden: true }, "peak");
  const slider = el(
    "div.timeline",
    {
      id: "timeline",
      tabindex: "0",
      role: "slider",
      "aria-label": "Instant",
      "aria-valuemin": 0,
      "aria-describedby": "timeline-help",
      on: { keydown },
    },
    plot,
    cursor,
    peak,
  );
  const choices = [
    ["time", "Time", "by the clock"],
    ["calls", "Calls", "every call equally wide"],
  ];
  const modes = toggles("Horizontal axis", choices, (value) => {
    mode = value;
    rebuild();
  });
  const zooms = el(
    "div.tabs",
    { role: "group", "aria-label": "Zoom" },
    button("Whole run", () => view.whole()),
    button("This call", () => zoomToCalls(0)),
    button("± 5 calls", () => zoomToCalls(5)),
  );
  const legend = el("ul.legend", { "aria-label": "Categories" });
  fill(
    root,
    el("div.toolbar", {}, legend, el("div.tabs", {}, modes.element, zooms)),
    slider,
    el("div.timeline-overview", {}, whole.bar),
    help(
      "timeline-help",
      "Click an instant, or use [←] [→] for the next one, [Shift] with them for the next call, " +
        "[Home] [End] for the first and last, [P] for the peak. Drag to pan, [Ctrl] and the wheel " +
        "to zoom. Where instants are too narrow to be told apart, the pale colours go up to the highest " +
        "of some, the full ones to the lowest. " +
        "Within a call, instants are evenly spread; calls that ran side by side follow each other.",
    ),
  );
  const refresh = drawn(plot, draw);
  interact(plot, view, { hover, leave: hideTooltip, click }, PLOT.left);

  /** A new device or axis. */
  function rebuild() {
    axis = new Axis(state.model, mode);
    modes.set(mode);
    view.reset(axis.end || 1, mode === "calls" ? 1e-3 : 10);
    const entry = (name) => el("li", {}, categorySwatch(name), words(name));
    fill(legend, state.model.categories().map(entry));
    refresh();
  }

  function draw() {
    if (!axis || !state.model.length) return;
    const box = inside(plot);
    const { width } = box;
    view.width = width;
    const columns = Math.max(1, Math.floor(width / columnWidth(axis, view)));
    shown = pixelColumns(state.model, axis, view.from, view.to, columns);
    const c = begin(picture, plot.clientWidth, plot.clientHeight);
    const most = Math.max(...shown.high);
    const y = byteAxis(c, box, most);
    timeAxis(c, box, view, (x, span) => {
      if (mode === "time") return tick(x, span);
      return x < state.model.length && Number.isInteger(x) ? `call ${count(x + 1)}` : "";
    });
    const edge = (_, i) => PLOT.left + (i * width) / columns;
    const edges = Float64Array.from({ length: columns + 1 }, edge);
    const layers = (values) => STACK.map((name, i) => [categoryColor(name), values[i]]);
    // What comes and goes within a column is a band, pale, above what stays.
    c.globalAlpha = 0.4;
    drawStack(c, edges, layers(shown.categories), y);
    c.globalAlpha = 1;
    drawStack(c, edges, layers(shown.floor), y);
    if (shown.low.some((v, i) => v < shown.high[i])) {
      c.globalAlpha = 0.6;
      for (const line of [shown.low, shown.high]) drawLine(c, edges, line, y, color("--text"), 1);
      c.globalAlpha = 1;
    }
    whole.draw();
    mark();
  }

  /** Puts the cursor and the peak where they belong. */
  function mark() {
    place(cursor, state.call, state.position);
    const top = state.model.device.peak;
    if (top) place(peak, ...top);
    else peak.hidden = true;
  }

  function place(node, call, position) {
    // The middle of what can be seen of the instant: its edge is the next one's too.
    const from = Math.max(axis.at(call, position), view.from);
    const to = Math.min(axis.after(call, position), view.to);
    node.hidden = from > to;
    node.style.left = `${PLOT.left + view.x((from + to) / 2)}px`;
  }

  function positionAt(offset) {
    const part = offset / view.width;
    if (part < 0 || part > 1 || !shown) return null;
    const c = Math.min(shown.call.length - 1, Math.floor(part * shown.call.length));
    // Where a pixel holds many instants, it stands for its highest: that is what is drawn.
    return shown.high[c] < 0 ? null : [shown.call[c], shown.position[c]];
  }

  function click(x) {
    const at = positionAt(x);
    if (!at) return;
    state.select(...at);
    slider.focus({ preventScroll: true });
  }

  function hover(x, _y, event) {
    const at = positionAt(x);
    if (!at) return hideTooltip();
    const values = state.model.categoryBytes(...at);
    const rows = STACK.map((name, i) => [
      words(name),
      bytes(values[i]),
      categoryColor(name),
    ]).filter((_, i) => values[i] > 0);
    const total = bytes(state.model.bytes(...at));
    showTooltip(event, `${total} · ${state.nameOf(...at)}`, rows.reverse());
  }

  function keydown(event) {
    onKey(event, {
      ArrowRight: () => (event.shiftKey ? state.moveCall(1) : state.move(1)),
      ArrowLeft: () => (event.shiftKey ? state.moveCall(-1) : state.move(-1)),
      ArrowUp: () => state.move(1),
      ArrowDown: () => state.move(-1),
      PageUp: () => state.moveCall(-10),
      PageDown: () => state.moveCall(10),
      Home: () => state.select(0, 0),
      End: () => state.select(state.model.length - 1, Infinity),
    });
  }

  function zoomToCalls(around) {
    const first = Math.max(0, state.call - around);
    const last = Math.min(state.model.length - 1, state.call + around);
    const from = axis.starts[first];
    // One call alone is shown without the pause after it.
    const to = around ? axis.starts[last + 1] : axis.ends[last];
    view.set(from, to > from ? to : from + 1);
  }

  /** Keeps the chosen instant in the window. */
  function follow() {
    const x = axis.at(state.call, state.position);
    const half = (view.to - view.from) / 2;
    const end = axis.after(state.call, state.position) - half * 2e-9;
    if (x < view.to && Math.max(x, end) >= view.from) mark();
    else view.set(x - half, x + half);
  }

  state.on("device", rebuild);
  state.on("select", () => {
    follow();
    const { model, call, position } = state;
    slider.ariaValueMax = model.length - 1;
    slider.ariaValueNow = call;
    const live = bytes(model.bytes(call, position));
    slider.ariaValueText = `${state.nameOf(call, position)}: ${live} live`;
  });
}

/**
 * One of payload.curves, with its legend; what lies under the pointer is said. Python has thinned
 * them (payload.py); bytes hold until the next entry.
 */
function curve({ label, time_ns: time, peak, stacked, lines: given }) {
  const rank = (l) => STACK.indexOf(l.name);
  const found = stacked ? [...given].sort((a, b) => rank(a) - rank(b)) : given;
  const lines = found.map(({ name, values }, i) => ({
    name: words(name),
    values,
    variable: stacked ? categoryVariable(name) : `--${LINES[i % LINES.length]}`,
  }));
  const key = ({ name, variable }) => el("li", {}, swatch(`var(${variable})`), name);
  const picture = canvas("curve-canvas", label);
  const box = el("div.curve", {}, picture);
  const first = time[0];
  const view = new View(Math.max(1, time.at(-1) - first));
  const sums = time.map((_, i) => lines.reduce((n, l) => n + l.values[i], 0));
  const heights = stacked ? sums : lines.flatMap((l) => l.values);
  const most = heights.reduce((a, b) => Math.max(a, b), 0);

  drawn(box, () => {
    const area = inside(box);
    view.width = area.width;
    const c = begin(picture, box.clientWidth, box.clientHeight);
    const y = byteAxis(c, area, most);
    timeAxis(c, area, view, (t, span) => tick(t + first, span));
    const x = (t) => PLOT.left + view.x(t - first);
    const edges = [...time, time.at(-1)].map(x);
    const drawings = lines.map((l) => [color(l.variable), l.values]);
    if (stacked) drawStack(c, edges, drawings, y);
    else for (const [style, values] of drawings) drawLine(c, edges, values, y, style);
    if (peak === null) return;
    c.fillStyle = color("--accent");
    c.fillRect(x(peak), PLOT.top, 1, area.height);
    c.fillStyle = color("--text-2");
    c.textAlign = "center";
    c.fillText("peak", x(peak), PLOT.top - 13);
  });
  const find = (x) => Math.max(0, above(time, first + view.time(x - PLOT.left)) - 1);
  pointed(box, find, (i, event) => {
    const rows = lines.map((l) => [l.name, bytes(l.values[i]), `var(${l.variable})`]);
    showTooltip(event, ns(time[i]), rows);
  });
  return el("div", {}, el("ul.legend", {}, lines.map(key)), box);
}
