// Pictures over time: uPlot's axes, cursor and selection, and a window that the reader moves.

const LINES = ["--accent", "--cat-temporary", "--cat-gradient", "--cat-output", "--cat-activation"];

/** A time of `n` ns on an axis that shows `span` of them: neighbours differ. @type {(n: number, span: number) => string} */
function tick(n, span) {
  if (n === 0) return "0";
  const [unit, size] = TIMES.findLast(([, least]) => Math.abs(n) >= least) ?? TIMES[0];
  const digits = Math.ceil(-Math.log10(Math.max(span, 1) / 20 / size));
  return `${grouped(n / size, Math.max(0, Math.min(Math.round(Math.log10(size)), digits)))} ${unit}`;
}

/** @type {uPlot.Axis} */
const AXIS = {
  font: "11px system-ui, sans-serif",
  stroke: () => color("--text-2"),
  grid: { stroke: () => color("--line"), width: 1 },
  ticks: { show: false },
};
const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500];
/** @type {(unit: number) => number[]} */
const distances = (unit) => [0, 1, 2, 3, 4].flatMap((k) => ROUND.map((n) => n * unit ** k));
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
  values: (_, at) => at.map((t) => tick(t, at[at.length - 1] - at[0])),
};

/** A series of steps in a CSS colour, filled or as a line. @type {(css: string, isFilled: boolean) => uPlot.Series} */
function stepsIn(css, isFilled) {
  const style = { [isFilled ? "fill" : "stroke"]: () => computed(css) };
  return { paths: uPlot.paths.stepped?.({ align: 1 }), points: { show: false }, width: 1.5, ...style };
}

/** Sums of layers, from the top one down: areas are painted over each other. @type {(layers: number[][]) => number[][]} */
function stacked(layers) {
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
function chartIn(box, { label, height, start = 0, end, least = 1, data, series, axes, padding, draw, hover, click }) {
  /** @type {Chart} */
  const chart = {
    from: start,
    to: end,
    set(from, to) {
      const span = Math.min(end - start, Math.max(least, to - from));
      chart.from = Math.max(start, Math.min(end - span, from));
      chart.to = chart.from + span;
      plot.batch(() => {
        plot.setData(/** @type {any} */ (data(chart.from, chart.to, plot.width - 84)), false);
        plot.setScale("x", { min: chart.from, max: chart.to });
      });
    },
    pan(part) {
      const by = part * (chart.to - chart.from);
      chart.set(chart.from + by, chart.to + by);
    },
    zoom(factor, x = (chart.from + chart.to) / 2) {
      chart.set(x - (x - chart.from) / factor, x + (chart.to - x) / factor);
    },
    whole: () => chart.set(start, end),
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
        bind: { dblclick: () => () => chart.whole() ?? null },
      },
      hooks: { draw: [(u) => draw?.(u)], setSelect: [zoomToSelected] },
    },
    /** @type {any} */ (data(start, end, Math.max(200, box.clientWidth) - 84)),
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
      over.dataset.tip = hover(at(event), event);
    });
  }
  over.addEventListener("click", (event) => click?.(at(event), event));
  // A wheel alone scrolls the page, as it does everywhere.
  over.addEventListener("wheel", (event) => {
    const along = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!along && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    if (along) chart.pan((event.deltaX || event.deltaY) / over.clientWidth);
    else chart.zoom(Math.exp(-event.deltaY * 0.002), at(event));
  });
  new ResizeObserver(() => {
    if (!box.clientWidth || box.clientWidth === plot.width) return;
    plot.setSize({ width: box.clientWidth, height });
    chart.set(chart.from, chart.to);
  }).observe(box);
  addEventListener("theme", () => plot.redraw());
  return Object.assign(chart, { plot });
}

/** One of `profile.curves`, with its legend; bytes hold until the next entry. @type {(curve: Curve, root: HTMLElement) => void} */
function curve({ label, time_ns: time, peak, stacked: isStacked, lines: given }, root) {
  const lines = given.map((line, i) => ({
    ...line,
    css: `var(${isStacked ? categoryVariable(line.name) : LINES[i % LINES.length]})`,
  }));
  if (isStacked) lines.sort((a, b) => STACK.indexOf(b.name) - STACK.indexOf(a.name));
  const values = lines.map((l) => l.values);
  const legend = lines.map((l) => el("li", {}, swatch(l.css), words(l.name)));
  root.append(el("ul.legend", {}, legend));
  chartIn(root, {
    label,
    height: 220,
    start: time[0],
    end: Math.max(time[0] + 1, time[time.length - 1]),
    data: () => [time, ...(isStacked ? stacked(values) : values)],
    series: lines.map((l) => stepsIn(l.css, isStacked)),
    axes: [TIME_AXIS, BYTE_AXIS],
    draw: (plot) => peak !== null && mark(plot, peak, "peak"),
    hover(x) {
      const i = Math.max(0, above(time, x) - 1);
      return tip(
        ns(time[i]),
        lines.map((l) => [words(l.name), bytes(l.values[i])]),
      );
    },
  });
}
