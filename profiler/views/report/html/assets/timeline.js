// Memory over time: stacked by category, with the choice of an instant on it.

/** Pixels of a call below which it cannot be told from the next, and calls that stand together then. */
const ROOM = 4;

/** The share of the run in which compiled calls were under way. @type {(model: Model) => number} */
function busyShare({ device: { calls }, length, unit }) {
  const busy = sum(calls.duration_ns.filter((_, k) => unit(k)));
  return busy / (calls.start_ns[length - 1] + calls.duration_ns[length - 1] || 1);
}

/** @type {Draw} */
function timeline(state, root) {
  // Where compiling took most of the time, the clock would show little else; where calls are many,
  // it makes stripes of them, of which none can be told from the next.
  let byClock = state.model.length * ROOM <= innerWidth && busyShare(state.model) >= 0.3;
  /** @type {Axis} */
  let axis;
  /** @type {Chart} */
  let chart;
  /** @type {ReturnType<typeof columnsOf>} */
  let shown;
  addTemplate(root, "timeline", {
    whole: () => chart.whole(),
    call: () => zoomToCalls(0),
    calls: () => zoomToCalls(5),
  });
  const box = byId("timeline");
  const modes = [
    ["time", "Time"],
    ["calls", "Calls"],
  ];
  radios(byId("timeline-axis"), byClock ? modes : modes.reverse(), (mode) => {
    byClock = mode === "time";
    rebuild();
  });
  box.addEventListener("keydown", (event) =>
    onKey(event, {
      ArrowRight: () => (event.shiftKey ? state.moveCall(1) : state.move(1)),
      ArrowLeft: () => (event.shiftKey ? state.moveCall(-1) : state.move(-1)),
      PageUp: () => state.moveCall(-10),
      PageDown: () => state.moveCall(10),
      Home: () => state.select(0, 0),
      End: () => state.select(state.model.length - 1, Number.POSITIVE_INFINITY),
    }),
  );

  /** A new device or axis. */
  function rebuild() {
    const { model } = state;
    const layers = model.categories.toReversed();
    const colors = layers.map((name) => `var(${categoryVariable(name)})`);
    const pale = (/** @type {string} */ css) => `color-mix(in srgb, ${css} 40%, var(--page))`;
    const entries = model.categories.map((name) => el("li", {}, categorySwatch(name), words(name)));
    fill(byId("timeline-legend"), entries);
    fill(box);
    if (!model.length) return;
    axis = axisOf(model, byClock);
    chart = chartIn(box, {
      label: "Memory over time by category",
      height: 300,
      end: axis.starts[model.length] || 1,
      least: byClock ? 10 : 1e-3,
      data,
      // What comes and goes within a column is pale, above what stays.
      series: [...colors.map((css) => stepsIn(pale(css), true)), ...colors.map((css) => stepsIn(css, true))],
      axes: [byClock ? TIME_AXIS : { ...TIME_AXIS, values: (_, at) => at.map(nameOfCall) }, BYTE_AXIS],
      draw(plot) {
        const { peak } = model.device;
        if (peak) mark(plot, middle(peak[0], peak[1]), "peak");
        mark(plot, middle(state.call, state.position));
      },
      hover(x) {
        const at = positionAt(x);
        const rows = layers.map((name) => [words(name), model.bytes(...at, name)]);
        return tip(
          `${bytes(model.bytes(...at))} · ${state.nameOf(...at)}`,
          rows.filter(([, n]) => n).map(([name, n]) => [String(name), bytes(Number(n))]),
        );
      },
      click(x) {
        state.select(...positionAt(x));
        box.focus({ preventScroll: true });
      },
    });
    window.memprof.timeline = chart;

    /** @type {ChartOptions["data"]} */
    function data(from, to, width) {
      const each = width / (axis.find(to)[0] - axis.find(from)[0] + 1);
      const count = Math.ceil(width / (each < ROOM ? Math.max(3, ROOM * each) : 1));
      shown = columnsOf(model, axis, from, to, count);
      const edges = Array.from({ length: count + 1 }, (_, c) => from + (c * (to - from)) / count);
      const sums = [shown.high, shown.low].map((of) =>
        stacked(layers.map((name) => [...of.map((at) => (at ? model.bytes(...at, name) : 0)), 0])),
      );
      return [edges, ...sums.flat()];
    }
  }

  /** @type {(x: number) => string} */
  const nameOfCall = (x) => (Number.isInteger(x) && x < state.model.length ? `call ${grouped(x + 1)}` : "");

  /** Where many instants stand together, the highest of them. @type {(x: number) => Position} */
  function positionAt(x) {
    const part = (x - chart.from) / (chart.to - chart.from);
    const column = Math.min(shown.high.length - 1, Math.floor(part * shown.high.length));
    return shown.high[column] ?? axis.find(x);
  }

  /** The middle of what can be seen of an instant: its edge is the next one's too. */
  function middle(/** @type {number} */ call, /** @type {number} */ position) {
    const from = Math.max(axis.edge(call, position), chart.from);
    const to = Math.min(axis.edge(call, position + 1), chart.to);
    return from > to ? Number.NaN : (from + to) / 2;
  }

  function zoomToCalls(/** @type {number} */ around) {
    const first = Math.max(0, state.call - around);
    const last = Math.min(state.model.length - 1, state.call + around);
    // One call alone is shown without the pause after it.
    chart.set(axis.starts[first], around ? axis.starts[last + 1] : axis.ends[last]);
  }

  state.on("device", rebuild);
  state.on("select", () => {
    const { model, call, position } = state;
    const [from, to] = [axis.edge(call, position), axis.edge(call, position + 1)];
    const half = (chart.to - chart.from) / 2;
    if (from >= chart.to || (to <= chart.from && from < chart.from)) chart.set(from - half, from + half);
    chart.redraw();
    const text = `${state.nameOf(call, position)}: ${bytes(model.bytes(call, position))} live`;
    Object.assign(box, { ariaValueMax: model.length - 1, ariaValueNow: call, ariaValueText: text });
  });
}
