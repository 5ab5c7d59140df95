// Pictures over time: uPlot's axes, cursor and selection, and a window that the reader moves.

/** @type {uPlot.Axis} */
const AXIS = {
  font: "11px system-ui, sans-serif",
  stroke: () => color("--text-2"),
  grid: { stroke: () => color("--line"), width: 1 },
  ticks: { show: false },
};
const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const distances = (/** @type {number} */ unit) => [0, 1, 2, 3, 4].flatMap((k) => ROUND.map((n) => n * unit ** k));
/** @type {uPlot.Axis} */
const BYTE_AXIS = {
  ...AXIS,
  size: 70,
  incrs: distances(1024),
  values: (_, at) => at.map((n) => (n ? bytes(n) : "0")),
};
/** @type {uPlot.Axis} */
const TIME_AXIS = {
  ...AXIS,
  size: 26,
  gap: 4,
  space: 90,
  incrs: distances(1000),
  // After the first, how much later: neighbours differ at every zoom.
  values: (_, at) => at.map((t, i) => (i ? `+${ns(t - at[0])}` : ns(t))),
};

/** A series of steps in a CSS colour, filled or as a line. @type {(css: string, isFilled: boolean) => uPlot.Series} */
function stepsIn(css, isFilled) {
  const style = { [isFilled ? "fill" : "stroke"]: () => computed(css) };
  return { paths: uPlot.paths.stepped?.({ align: 1 }), points: { show: false }, width: 1.5, ...style };
}

/** Sums of layers, from the top one down: areas are painted over each other. */
function stacked(/** @type {number[][]} */ layers) {
  const sums = [...layers];
  for (let s = sums.length - 2; s >= 0; s--) sums[s] = sums[s].map((v, i) => v + sums[s + 1][i]);
  return sums;
}

/** A line across a plot at `x`, thin if there is a word above it. @type {(plot: uPlot, x: number, text?: string) => void} */
function mark({ ctx, bbox, valToPos }, x, text = "") {
  const left = Math.round(valToPos(x, "x", true));
  if (!(left >= bbox.left && left <= bbox.left + bbox.width)) return;
  const width = (text ? 1 : 2) * devicePixelRatio;
  ctx.fillStyle = color("--accent");
  ctx.fillRect(left - width / 2, bbox.top, width, bbox.height);
  Object.assign(ctx, { font: `${11 * devicePixelRatio}px system-ui`, textAlign: "center", textBaseline: "bottom" });
  ctx.fillText(text, left, bbox.top - 2);
}

/** @type {(box: HTMLElement, options: ChartOptions) => Chart} */
function chartIn(box, { label, height, end, least, data, series, axes, padding, draw, hover, click }) {
  /** @type {Chart} */
  const chart = {
    from: 0,
    to: end,
    set(from, to) {
      const span = Math.min(end, Math.max(least, to - from));
      chart.from = Math.max(0, Math.min(end - span, from));
      chart.to = chart.from + span;
      plot.batch(() => {
        plot.setData(/** @type {any} */ (data(chart.from, chart.to, plot.width - 84)), false);
        plot.setScale("x", { min: chart.from, max: chart.to });
      });
    },
    move(part, factor = 1) {
      const half = (chart.to - chart.from) / 2;
      const middle = chart.from + half + 2 * half * part;
      chart.set(middle - half / factor, middle + half / factor);
    },
    whole: () => chart.set(0, end),
    x: (value) => plot.valToPos(value, "x"),
    redraw: () => plot.redraw(false),
  };
  const plot = new uPlot(
    {
      width: Math.max(200, box.clientWidth),
      height,
      axes,
      padding: padding ?? [16, 14, null, null],
      legend: { show: false },
      series: [{}, ...series],
      scales: { x: { time: false }, y: { range: (_u, _min, most) => [0, 1.04 * most || 1] } },
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, setScale: false },
        bind: {
          // Also where bars lie over the plot.
          mousedown: (_u, _over, begin) => (event) => (event.button ? null : begin(event)),
          mousemove: (_u, _over, move) => move,
          dblclick: () => () => chart.whole() ?? null,
        },
      },
      hooks: { draw: [(u) => draw?.(u)], setSelect: [zoomToSelected] },
    },
    /** @type {any} */ (data(0, end, Math.max(200, box.clientWidth) - 84)),
    box,
  );
  const { over } = plot;
  const at = (/** @type {MouseEvent} */ event) => plot.posToVal(event.offsetX, "x");

  function zoomToSelected() {
    const { left, width } = plot.select;
    if (!width) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    chart.set(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }
  Object.assign(plot.ctx.canvas, { role: "img", ariaLabel: label });
  for (const type of /** @type {const} */ (["pointermove", "pointerdown"])) {
    over.addEventListener(type, (event) => {
      over.dataset.tip = hover?.(at(event)) ?? "";
    });
  }
  over.addEventListener("click", (event) => click?.(at(event)));
  new ResizeObserver(() => {
    if (!box.clientWidth || box.clientWidth === plot.width) return;
    plot.setSize({ width: box.clientWidth, height });
    chart.set(chart.from, chart.to);
  }).observe(box);
  addEventListener("theme", () => plot.redraw());
  return Object.assign(chart, { plot });
}

/** One of `profile.curves`, with its legend; bytes hold until the next entry. @type {(curve: Curve, root: HTMLElement) => void} */
function curve({ label, time_ns: time, peak, stacked: isStacked, lines }, root) {
  if (isStacked) lines.sort((a, b) => STACK.indexOf(b.name) - STACK.indexOf(a.name));
  const values = lines.map((line) => line.values);
  const legend = lines.map((line) => el("li", {}, swatch(`var(${line.variable})`), words(line.name)));
  root.append(el("ul.legend", {}, legend));
  chartIn(root, {
    label,
    height: 220,
    end: Math.max(1, time[time.length - 1]),
    least: 1,
    data: () => [time, ...(isStacked ? stacked(values) : values)],
    series: lines.map((line) => stepsIn(`var(${line.variable})`, isStacked)),
    axes: [TIME_AXIS, BYTE_AXIS],
    draw: (plot) => peak !== null && mark(plot, peak, "peak"),
    hover(x) {
      const i = Math.max(0, above(time, x) - 1);
      return tip(
        ns(time[i]),
        lines.map((line) => [words(line.name), bytes(line.values[i])]),
      );
    },
  });
}
