// Operations, compiled calls and compilations over time: bars in lanes, laid over a plot that has their scale and
// window. A bar is its number in the columns of payload_gantt.py, which go row by row.

const SCALE = 26;
const MOST_HEIGHT = 420;

/** @type {Draw} */
function gantt(state, root) {
  const { bars, heads, rows, height: total, legend, modes, pauses, calls, end } = state.profile.gantt;
  const { start, duration, call, name, kind } = bars;
  addTemplate(root, "gantt", {
    earlier: () => chart.move(-0.5),
    later: () => chart.move(0.5),
    out: () => chart.move(0, 1 / 2),
    in: () => chart.move(0, 2),
    whole: () => chart.whole(),
    calls: () => calls && chart.set(...calls),
  });
  const list = el("div.bars");
  const chart = chartIn(byId("gantt"), {
    label: "Operations and calls",
    height: Math.min(total + 8, MOST_HEIGHT) + SCALE,
    end: Math.max(1, end),
    least: 100,
    data: (from, to) => [[from, to]],
    series: [],
    axes: [{ ...TIME_AXIS, side: 0, size: SCALE }, { show: false }],
    padding: [0, 20, 0, 20],
    draw,
  });
  chart.plot?.over.append(list);

  const nameOf = (/** @type {number} */ i) => name.of[name.at[i]];
  const kindOf = (/** @type {number} */ i) => kind.of[kind.at[i]];
  const endOf = (/** @type {number} */ i) => start[i] + duration[i];
  const begin = (/** @type {number} */ i) => `${grouped(start[i] / 1e6, 3)} ms`;

  function draw(/** @type {uPlot} */ { over }) {
    const place = (/** @type {number} */ from, /** @type {number} */ to) => {
      const left = Math.max(-2, chart.x(from));
      return { left: `${left}px`, width: `${Math.max(1, Math.min(over.clientWidth, chart.x(to)) - left - 1)}px` };
    };
    const bar = (/** @type {number} */ i, /** @type {number} */ top) => {
      const ground = `var(--bar-${kindOf(i).replaceAll(" ", "-")})`;
      const style = { ...place(start[i], endOf(i)), top: `${top}px`, "--ground": ground };
      const text = tip(nameOf(i), [["Begins at", begin(i)], ["Duration", ns(duration[i])], ...known(i)]);
      return el("div.ground", { style, "data-tip": text, click: () => showCall(i) }, nameOf(i));
    };
    fill(
      list,
      // Where the tracker was off, nothing was recorded: grey.
      pauses.map(([from, to]) => el("div.pause", { style: { ...place(from, to), height: `${total}px` } })),
      heads.map(({ text, top }) => el("b", { style: { top: `${top}px` } }, text)),
      rows.map((row) => shown(row).map((i) => bar(i, row.top))),
    );
  }

  /** Bars of a row in the window: of those within two pixels the first, but before others one that failed. */
  function shown(/** @type {GanttPayload["rows"][0]} */ { first, end: last }) {
    const found = [];
    const fails = (/** @type {number} */ i) => kindOf(i) === "failed operation";
    let next = Math.max(first, above(start, chart.from, first, last) - 1);
    while (next < last && start[next] <= chart.to) {
      let i = next++;
      const until = chart.x(start[i]) + 2;
      for (; next < last && chart.x(endOf(i)) < until && chart.x(start[next]) < until; next++) {
        if (fails(next) && !fails(i)) i = next;
      }
      found.push(i);
    }
    return found;
  }

  /** @type {(i: number) => Fact[]} */
  function known(i) {
    const k = call[i];
    const ran = k === null ? "" : `${grouped(k + 1)} of ${grouped(modes.length)}, ${modes[k]}`;
    return [["Kind", kindOf(i)], ...bars.facts[i], ["Call", ran]];
  }

  /** Leads to what is live at the peak of a call. */
  function showCall(/** @type {number} */ i) {
    const k = call[i];
    if (k === null) return;
    state.select(k, state.model.levels(k).highest);
    byId("live-set").scrollIntoView();
  }

  /** All bars for keyboards and screen readers, made when they are asked for. */
  function drawTable() {
    /** @type {(i: number) => Cell[]} */
    const line = (i) => [
      [nameOf(i), ["span.code", {}, nameOf(i)], ["div.dim", {}, tip("", known(i)).trim().replaceAll("\n", " · ")]],
      [start[i], begin(i)],
      [duration[i], ns(duration[i])],
      call[i] === null ? "" : [call[i], ["button", { type: "button", click: () => showCall(i) }, "Its live set"]],
    ];
    fill(byId("gantt-table"), table({ ...state.profile.templates.bars, rows: [...start.keys()].map(line) }));
  }

  byId("gantt-list").addEventListener("toggle", drawTable, { once: true });
  fill(byId("gantt-legend"), build(legend));
  window.memprof.gantt = { bars, chart, nameOf };
}
