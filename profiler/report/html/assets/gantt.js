// Operations, compiled calls and compilations over time: the lanes, their window, the chosen bar.

const AXIS = 22;
const MOST_HEIGHT = 420;

/** An instant: of a long run with more digits than a duration needs. */
function formatInstant(n) {
  return n < 1e9 ? ns(n) : `${(n / 1e9).toFixed(6)} s`;
}

/** What is where in a lane, and what is known of each bar; a bar is [lane, index]. */
class GanttModel {
  /** `state` of the report has the live bytes of calls. */
  constructor(payload, state) {
    this.payload = payload;
    this.state = state;
    this.end = Math.max(1, payload.end);
    this.found = null;
    this.lanes = payload.lanes.map((lane) => ({ ...lane, byRow: this.rowsOf(lane) }));
    this.bars = this.lanes.reduce((n, lane) => n + lane.start.length, 0);
  }

  /** The bars of each row: sorted, and none overlaps another, as Python has placed them. */
  rowsOf(lane) {
    const failed = this.payload.kinds.indexOf("failed operation");
    const rows = Map.groupBy(lane.row.keys(), (i) => lane.row[i]);
    return Array.from({ length: lane.rows }, (_, r) => {
      const bars = rows.get(r) ?? [];
      let failures = 0;
      return {
        bars,
        start: bars.map((i) => lane.start[i]),
        end: bars.map((i) => lane.start[i] + lane.duration[i]),
        failedBefore: [0, ...bars.map((i) => (failures += lane.kind[i] === failed))],
      };
    });
  }

  /** All bars in order of start, for stepping through them. */
  get order() {
    this._order ??= this.lanes
      .flatMap((lane) => lane.start.map((_, i) => [lane, i]))
      .sort(([a, i], [b, j]) => a.start[i] - b.start[j]);
    return this._order;
  }

  /** Looks for bars by a part of their name; "" ends it. The number found. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    this.found = wanted ? (name) => name.toLowerCase().includes(wanted) : null;
    if (!wanted) return this.bars;
    return this.lanes.reduce((n, lane) => n + lane.label.filter(this.found).length, 0);
  }

  isFound(lane, i) {
    return !this.found || this.found(lane.label[i]);
  }

  kind(lane, i) {
    return this.payload.kinds[lane.kind[i]];
  }

  /** The call that a bar is, null for other bars. */
  call(lane, i) {
    const kind = this.kind(lane, i);
    return kind.endsWith("operation") || kind === "compilation" ? null : lane.detail[i];
  }

  /** What is known of a bar, as [label, value] rows. */
  facts(lane, i) {
    const kind = this.kind(lane, i);
    const call = this.call(lane, i);
    const more = kind === "compilation" ? [] : this.operationFacts(lane.detail[i]);
    return [
      ["Kind", kind],
      ["Begins at", formatInstant(lane.start[i])],
      ["Duration", ns(lane.duration[i])],
      ...(call === null ? more : this.callFacts(call)),
    ];
  }

  /** Python has of each a label, and a text, or bytes, or bytes before and after. */
  operationFacts(i) {
    return (this.payload.operations[i] ?? []).flatMap(([label, value, after]) => {
      if (after === undefined) return [[label, typeof value === "string" ? value : bytes(value)]];
      const change = `${after < value ? "−" : "+"}${bytes(Math.abs(after - value))}`;
      return [
        [label, `${bytes(value)} → ${bytes(after)}`],
        ["Change", change],
      ];
    });
  }

  callFacts(k) {
    const { modes } = this.payload;
    const { models } = this.state;
    const live = models.flatMap((model) => {
      const { totals, highest, rest, between } = model.extent(k);
      if (!(rest + totals[highest]) && !between) return [];
      const where = models.length > 1 ? ` on ${model.name}` : "";
      return [
        [`Live at entry${where}`, bytes(rest + totals[0])],
        [`Peak inside${where}`, bytes(rest + totals[highest])],
        [`Left behind${where}`, bytes(between)],
      ];
    });
    return [["Call", `${count(k + 1)} of ${count(modes.length)}`], ["Ran as", modes[k]], ...live];
  }
}

function gantt(state, root) {
  const model = new GanttModel(state.payload.gantt, state);
  const view = new View(model.end, () => redraw());
  const lanes = new Lanes(model, view);
  const whole = overview(view);
  const axis = canvas("gantt-axis", "Time");
  const cursor = el("div.cursor", { hidden: true });
  const spacer = el("div", { style: { height: "0px" } });
  const scroll = el("div.gantt-scroll", {}, lanes.canvas, spacer);
  const plot = el(
    "div.gantt-plot",
    {
      id: "gantt",
      tabindex: "0",
      role: "application",
      "aria-label": "Operations and calls over time",
      "aria-describedby": "gantt-keys",
      on: { keydown },
    },
    axis,
    scroll,
    cursor,
  );
  const more = el("div.detail.gantt-detail", { hidden: true });

  const redraw = drawn(plot, () => {
    view.width = plot.clientWidth;
    whole.draw();
    const box = { left: 0, top: -4, width: view.width, height: AXIS / 2 - 6 };
    timeAxis(begin(axis, view.width, AXIS), box, view, tick);
    // The sticky canvas takes its own place in the flow; the spacer is what is left below it.
    const height = Math.min(lanes.total, MOST_HEIGHT);
    scroll.style.height = `${height}px`;
    lanes.scroll = scroll.scrollTop;
    lanes.draw(height);
    spacer.style.height = `${Math.max(0, lanes.total - height)}px`;
    plot.ariaLabel = `Operations and calls from ${ns(view.from)} to ${ns(view.to)}`;
  });
  scroll.addEventListener("scroll", redraw, { passive: true });

  const reveal = ([lane, i]) => view.reveal(lane.start[i], lane.start[i] + lane.duration[i]);

  function choose(bar, show) {
    lanes.selected = bar;
    more.hidden = !bar;
    if (bar) showMore(bar);
    if (bar && show) {
      reveal(bar);
      const [top, bottom] = lanes.extent(bar);
      const height = scroll.clientHeight;
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (bottom > scroll.scrollTop + height) scroll.scrollTop = bottom - height;
      const [lane, i] = bar;
      announce(`${lane.label[i]}, ${ns(lane.duration[i])}`);
    }
    redraw();
  }

  /** The facts of a bar; of a call also the way to its live set. */
  function showMore([lane, i]) {
    const show = () => {
      reveal([lane, i]);
      plot.focus({ preventScroll: true });
    };
    const call = model.call(lane, i);
    const live = () => {
      state.select(call, state.model.extent(call).highest);
      document.getElementById("live-set").scrollIntoView();
    };
    const quiet = (text, press) => button(text, press, null, "button.quiet");
    fill(
      more,
      el(
        "h3",
        {},
        `${lane.label[i]} `,
        quiet("Show", show),
        call !== null && quiet("Its live set", live),
      ),
      facts(model.facts(lane, i)),
    );
  }

  /** Chooses the next bar in order of start, of those that are found; with -1 the one before. */
  function step(by) {
    const { order } = model;
    const [lane, i] = lanes.selected ?? [];
    let at = order.findIndex(([l, j]) => l === lane && j === i);
    if (at < 0) at = order.findIndex(([l, j]) => l.start[j] >= view.from) - (by > 0);
    for (at += by; at >= 0 && at < order.length; at += by) {
      if (model.isFound(...order[at])) return choose(order[at], true);
    }
  }

  function keydown(event) {
    onKey(event, {
      ArrowLeft: () => view.pan(-view.width / 10),
      ArrowRight: () => view.pan(view.width / 10),
      PageUp: () => view.pan(-view.width * 0.9),
      PageDown: () => view.pan(view.width * 0.9),
      Home: () => view.set(0, view.to - view.from),
      End: () => view.set(view.end - (view.to - view.from), view.end),
      "+": () => view.zoom(1.5),
      "=": () => view.zoom(1.5),
      "-": () => view.zoom(1 / 1.5),
      0: () => view.whole(),
      n: () => step(1),
      p: () => step(-1),
      Enter: () => {
        if (!lanes.selected) return;
        const [lane, i] = lanes.selected;
        const room = Math.max(lane.duration[i] * 0.1, 50);
        view.set(lane.start[i] - room, lane.start[i] + lane.duration[i] + room);
      },
      Escape: () => choose(null),
    });
  }

  function hovered(bar) {
    if (bar?.[0] === lanes.hovered?.[0] && bar?.[1] === lanes.hovered?.[1]) return;
    lanes.hovered = bar;
    redraw();
  }

  interact(scroll, view, {
    leave() {
      cursor.hidden = true;
      hideTooltip();
      hovered(null);
    },
    scroll: (pixels) => (scroll.scrollTop += pixels),
    hover(x, y, event) {
      cursor.hidden = false;
      cursor.style.left = `${x}px`;
      const bar = lanes.find(x, y);
      hovered(bar);
      if (!bar) return hideTooltip();
      const [lane, i] = bar;
      showTooltip(event, lane.label[i], model.facts(lane, i));
    },
    click(x, y) {
      plot.focus({ preventScroll: true });
      choose(lanes.find(x, y));
    },
  });

  const buttons = [
    ["◀", "Earlier", () => view.pan(-view.width / 2)],
    ["▶", "Later", () => view.pan(view.width / 2)],
    ["−", "Zoom out", () => view.zoom(1 / 2)],
    ["+", "Zoom in", () => view.zoom(2)],
    ["Whole run", "Show everything", () => view.whole()],
    ...callsWindow(model, view),
  ].map(([text, title, press]) => button(text, press, title));
  const found = el("span.dim.num", { "aria-live": "polite" });
  const find = el("input", {
    type: "search",
    placeholder: "Find by name",
    "aria-label": "Find bars by name",
    on: {
      input() {
        const n = model.find(find.value);
        found.textContent = model.found ? `${count(n)} found` : "";
        redraw();
      },
      keydown: (event) => event.key === "Enter" && step(event.shiftKey ? -1 : 1),
    },
  });
  const search = el("label.gantt-find", {}, found, " ", find);
  const tools = el("div.tabs", { role: "group", "aria-label": "Window" }, buttons);
  globalThis.memprof.chart = { model, view, lanes };
  fill(
    root,
    el("div.toolbar", {}, barLegend(model), el("div.tabs", {}, search, tools)),
    plot,
    whole.bar,
    help(
      "gantt-keys",
      "[Ctrl] and the wheel, or [+] [−] zooms, drag or [←] [→] pans, [N] [P] goes to the next or " +
        "previous bar, [Enter] zooms to it, [0] shows the whole run.",
    ),
    more,
  );
  const { calls } = model.payload;
  if (calls) view.set(...calls);
}

/** Where calls are a small part of the run, a button that shows just these. */
function callsWindow({ payload }, view) {
  const [from, to] = payload.all_calls ?? [0, Infinity];
  if (to - from > 0.9 * view.end) return [];
  const room = (to - from) * 0.02;
  const title = "From the first compiled call to the last";
  return [["Calls", title, () => view.set(from - room, to + room)]];
}

function barLegend(model) {
  const entry = ({ label, variable, count: n }) =>
    el("li", {}, swatch(`var(${variable})`), `${label} `, el("span.num.dim", {}, count(n)));
  const list = ([title, entries]) =>
    el(
      "ul.legend",
      { "aria-label": title },
      el("li", {}, el("strong", {}, title)),
      entries.map(entry),
    );
  return el("div", {}, model.payload.legend.map(list));
}
