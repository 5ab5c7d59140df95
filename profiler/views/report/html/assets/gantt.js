// Operations, compiled calls and compilations over time: lanes of rows of bars, their window, the
// chosen bar. A bar is its number in the columns of payload_gantt.py, which go row by row.

// As elements.py places lanes and rows.
const ROW = 18;
const BAR = 16;
const HEAD = 20;
const TOP = 26;
const MOST_HEIGHT = 420;

/** @type {Draw} */
function gantt(state, root) {
  const { bars, heads, rows, legend, modes, pauses, calls, end } = state.profile.gantt;
  const { start, duration, call, name: names, kind: kinds, color: colors } = bars;
  const total = state.profile.gantt.height + 8;
  const height = Math.min(total, MOST_HEIGHT);
  addTemplate(root, "gantt", {
    earlier: () => chart.pan(-0.5),
    later: () => chart.pan(0.5),
    out: () => chart.zoom(1 / 2),
    in: () => chart.zoom(2),
    whole: () => chart.whole(),
    calls: () => calls && chart.set(...calls),
    live: () => {
      const k = call[selected ?? -1] ?? 0;
      state.select(k, state.model.levels(k).highest);
      byId("live-set").scrollIntoView();
    },
  });
  const box = byId("gantt");
  const scroll = byId("gantt-scroll");
  byId("gantt-space").style.height = `${total - height}px`;
  /** @type {number | null} */
  let selected = null;

  const nameOf = (/** @type {number} */ i) => names.of[names.at[i]];
  const kindOf = (/** @type {number} */ i) => kinds.of[kinds.at[i]];
  const endOf = (/** @type {number} */ i) => start[i] + duration[i];
  const firsts = rows.map((row) => row.first);
  const rowOf = (/** @type {number} */ i) => rows[above(firsts, i) - 1];
  const inOrder = [...start.keys()].sort((a, b) => start[a] - start[b]);

  const chart = chartIn(scroll, {
    label: "Operations and calls",
    height: height + TOP,
    end: Math.max(1, end),
    least: 100,
    data: (from, to) => [[from, to]],
    series: [],
    axes: [{ ...TIME_AXIS, side: 0 }, { show: false }],
    padding: [0, 20, 0, 8],
    draw,
    hover: (x, event) => {
      const i = barAt(x, event.offsetY);
      return i === null ? "" : tip(nameOf(i), known(i));
    },
    click(x, event) {
      box.focus({ preventScroll: true });
      choose(barAt(x, event.offsetY));
    },
  });

  function draw(/** @type {uPlot} */ { ctx: c, bbox, width }) {
    c.save();
    c.beginPath();
    c.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    c.clip();
    c.translate(bbox.left, bbox.top);
    c.scale(devicePixelRatio, devicePixelRatio);
    Object.assign(c, { textBaseline: "middle", textAlign: "left" });
    // Where the tracker was off, nothing was recorded: grey.
    c.fillStyle = color("--line");
    for (const [from, to] of pauses) c.fillRect(chart.x(from), 0, chart.x(to) - chart.x(from), height);
    c.translate(0, -scroll.scrollTop);
    const isSeen = (/** @type {{ top: number }} */ { top }) =>
      top < scroll.scrollTop + height && top + HEAD > scroll.scrollTop;
    const fills = colors.of.map(color);
    const inks = colors.of.map(inkOn);
    for (const row of rows.filter(isSeen)) drawRow(c, row, fills, inks);
    c.font = "600 11px system-ui";
    c.fillStyle = color("--text");
    for (const { text, top } of heads.filter(isSeen)) c.fillText(text, 6, top + HEAD / 2);
    if (selected !== null) {
      c.strokeStyle = color("--accent");
      c.lineWidth = 2;
      const left = Math.max(-4, chart.x(start[selected]));
      const right = Math.min(width, chart.x(endOf(selected)));
      c.strokeRect(left, rowOf(selected).top + 1, Math.max(3, right - left), BAR);
    }
    c.restore();
  }

  /** At most one bar a pixel: the first, but before others one that failed. @type {(c: CanvasRenderingContext2D, row: GanttPayload["rows"][0], fills: string[], inks: string[]) => void} */
  function drawRow(c, { top, first, end: last }, fills, inks) {
    const matters = (/** @type {number} */ i) => kindOf(i) === "failed operation";
    c.font = "11px system-ui";
    let next = Math.max(first, above(start, chart.from, first, last) - 1);
    while (next < last && start[next] <= chart.to) {
      let i = next++;
      const left = Math.round(Math.max(-2, chart.x(start[i])));
      const right = Math.round(Math.max(left + 1, chart.x(Math.min(endOf(i), chart.to)) + 1));
      for (; right - left === 1 && next < last && chart.x(start[next]) < right - 0.5; next++) {
        if (matters(next) && !matters(i)) i = next;
      }
      c.fillStyle = fills[colors.at[i]];
      c.fillRect(left, top + 1, Math.max(1, right - left - 1), BAR);
      // Letters are some 6 pixels wide.
      const letters = Math.floor((right - Math.max(0, left) - 8) / 6);
      if (letters < 3) continue;
      c.fillStyle = inks[colors.at[i]];
      const name = nameOf(i);
      const text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
      c.fillText(text, Math.max(0, left) + 4, top + 1 + BAR / 2);
    }
  }

  /** The bar at a place, or the nearest of its row within two pixels; else null. */
  function barAt(/** @type {number} */ time, /** @type {number} */ y) {
    const row = rows.find(({ top }) => top <= y + scroll.scrollTop && y + scroll.scrollTop < top + ROW);
    if (!row) return null;
    const away = (/** @type {number} */ i) =>
      Math.max(0, chart.x(start[i]) - chart.x(time), chart.x(time) - chart.x(endOf(i)));
    const next = above(start, time, row.first, row.end);
    const near = [next - 1, next].filter((i) => row.first <= i && i < row.end && away(i) <= 2);
    return near.sort((a, b) => away(a) - away(b))[0] ?? null;
  }

  /** @type {(i: number) => Fact[]} */
  function known(i) {
    const k = call[i];
    return /** @type {Fact[]} */ ([
      ["Kind", kindOf(i)],
      ["Begins at", tick(start[i], 2e4)],
      ["Duration", ns(duration[i])],
      ...bars.facts[i],
      ["Call", k !== null && `${grouped(k + 1)} of ${grouped(modes.length)}`],
      ["Ran as", k !== null && modes[k]],
    ]);
  }

  /** @type {(i: number | null) => void} */
  function choose(i) {
    selected = i;
    byId("gantt-detail").hidden = i === null;
    if (i !== null) {
      fill(byId("gantt-name"), nameOf(i));
      fill(byId("gantt-facts"), facts(known(i)));
      byId("gantt-live").hidden = call[i] === null;
      byId("announcer").textContent = `${nameOf(i)}, ${ns(duration[i])}`;
    }
    chart.redraw();
  }

  /** Brings a bar into the window. */
  function reveal(/** @type {number} */ i) {
    const { top } = rowOf(i);
    scroll.scrollTop = Math.max(top + ROW + TOP - height, Math.min(top - HEAD, scroll.scrollTop));
    const [middle, half] = [start[i] + duration[i] / 2, (chart.to - chart.from) / 2];
    if (start[i] < chart.from || endOf(i) > chart.to) chart.set(middle - half, middle + half);
  }

  /** Chooses the next bar in order of start; with -1 the one before. */
  function step(/** @type {number} */ by) {
    let at =
      selected === null ? inOrder.findIndex((i) => start[i] >= chart.from) - Number(by > 0) : inOrder.indexOf(selected);
    at += by;
    if (inOrder[at] === undefined) return;
    choose(inOrder[at]);
    reveal(inOrder[at]);
  }

  box.addEventListener("keydown", (event) =>
    onKey(event, {
      ArrowLeft: () => chart.pan(-0.1),
      ArrowRight: () => chart.pan(0.1),
      "+": () => chart.zoom(1.5),
      "-": () => chart.zoom(1 / 1.5),
      0: () => chart.whole(),
      n: () => step(1),
      p: () => step(-1),
    }),
  );
  scroll.addEventListener("scroll", chart.redraw);
  fill(byId("gantt-legend"), legend.map(build));
  window.memprof.gantt = { bars, chart, inOrder, nameOf, kindOf, rowOf };
}
