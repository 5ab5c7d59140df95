// Memory over time: stacked by category, each call as wide as every other, with the choice of an instant.

/** Pixels of a call below which it cannot be told from the next, and calls that stand together then. */
const ROOM = 4;

/** @type {Draw} */
function timeline(state, root) {
  const { model } = state;
  const layers = model.categories.toReversed();
  const colors = layers.map((name) => `var(${categoryVariable(name)})`);
  const pale = colors.map((css) => `color-mix(in srgb, ${css} 40%, var(--page))`);
  /** @type {ReturnType<typeof columnsOf>} */
  let shown;
  addTemplate(root, "timeline", {
    whole: () => chart.whole(),
    call: () => chart.set(state.call, state.call + 1),
    calls: () => chart.set(state.call - 5, state.call + 6),
  });
  const entries = model.categories.map((name) => el("li", {}, categorySwatch(name), words(name)));
  fill(byId("timeline-legend"), entries);
  const chart = chartIn(byId("timeline"), {
    label: "Memory over time by category",
    height: 300,
    end: model.length,
    least: 1e-3,
    data(from, to, width) {
      const each = width / (to - from);
      const count = Math.ceil(width / (each < ROOM ? Math.max(3, ROOM * each) : 1));
      shown = columnsOf(model, from, to, count);
      const edges = Array.from({ length: count + 1 }, (_, c) => from + (c * (to - from)) / count);
      const sums = [shown.high, shown.low].map((of) =>
        stacked(layers.map((name) => [...of.map((at) => model.bytes(...at, name)), 0])),
      );
      return [edges, ...sums.flat()];
    },
    // What comes and goes within a column is pale, above what stays.
    series: [...pale, ...colors].map((css) => stepsIn(css, true)),
    axes: [{ ...TIME_AXIS, values: (_, at) => at.map(nameOfCall) }, BYTE_AXIS],
    draw(plot) {
      if (model.peak) mark(plot, middle(model.peak[0], model.peak[1]), "peak");
      mark(plot, middle(state.call, state.position));
    },
    hover(x) {
      const at = highestAt(x);
      const rows = layers.map((name) => [words(name), model.bytes(...at, name)]);
      return tip(
        `${bytes(model.bytes(...at))} · ${state.nameOf(...at)}`,
        rows.filter(([, n]) => n).map(([name, n]) => [String(name), bytes(Number(n))]),
      );
    },
    click: (x) => state.select(...highestAt(x)),
  });

  /** @type {(x: number) => string} */
  const nameOfCall = (x) => (Number.isInteger(x) && x < model.length ? `call ${grouped(x + 1)}` : "");

  /** Where many instants stand together, the highest of them. @type {(x: number) => Position} */
  function highestAt(x) {
    const part = (x - chart.from) / (chart.to - chart.from);
    return shown.high[Math.min(shown.high.length - 1, Math.floor(part * shown.high.length))];
  }

  /** The middle of what can be seen of an instant: its edge is the next one's too. */
  function middle(/** @type {number} */ call, /** @type {number} */ position) {
    const from = Math.max(edge(model, call, position), chart.from);
    const to = Math.min(edge(model, call, position + 1), chart.to);
    return from > to ? Number.NaN : (from + to) / 2;
  }

  state.onSelect(() => {
    const [from, to] = [edge(model, state.call, state.position), edge(model, state.call, state.position + 1)];
    const half = (chart.to - chart.from) / 2;
    if (from >= chart.to || to <= chart.from) chart.set(from - half, from + half);
    chart.redraw();
  });
  window.memprof.timeline = chart;
}
