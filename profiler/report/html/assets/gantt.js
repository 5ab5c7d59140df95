// Operations and compiled calls as bars: what is where in a lane, in which colour, and what is known
// of each. Bars come placed in rows (gantt_lanes.py), so that no two of a row overlap.

/** An instant: of a long run with more digits than a duration needs. */
function formatInstant(n) {
  return n < 1e9 ? ns(n) : `${(n / 1e9).toFixed(6)} s`;
}

/** The bars of one row: sorted, none overlaps another. */
class Row {
  constructor(bars, lane) {
    this.bars = Int32Array.from(bars);
    this.start = Float64Array.from(bars, (i) => lane.start[i]);
    this.end = Float64Array.from(bars, (i) => lane.start[i] + lane.duration[i]);
    const failed = lane.payload.kinds.indexOf("failed operation");
    this.failedBefore = new Int32Array(bars.length + 1);
    bars.forEach((i, n) => {
      this.failedBefore[n + 1] = this.failedBefore[n] + (lane.kind[i] === failed);
    });
  }

  /** Position in this row of the bar at `time`, or of the nearest within `slack`; else -1. */
  find(time, slack) {
    const after = above(this.start, time);
    if (after > 0 && this.end[after - 1] > time) return after - 1;
    const before = after > 0 ? time - this.end[after - 1] : Infinity;
    const next = after < this.start.length ? this.start[after] - time : Infinity;
    if (Math.min(before, next) > slack) return -1;
    return before <= next ? after - 1 : after;
  }
}

class Lane {
  constructor(payload, data) {
    Object.assign(this, data);
    this.payload = payload;
    const rows = Array.from({ length: data.rows }, () => []);
    data.row.forEach((r, i) => rows[r].push(i));
    this.byRow = rows.map((bars) => new Row(bars, this));
  }
}

class GanttModel {
  /** `state` of the report has the live bytes of calls. */
  constructor(payload, state) {
    this.payload = payload;
    this.state = state;
    this.end = Math.max(1, payload.end);
    this.found = null;
    this.lanes = payload.lanes.map((data) => new Lane(payload, data));
    this.bars = this.lanes.reduce((n, lane) => n + lane.start.length, 0);
  }

  /** All bars in order of start, for stepping through them: [lane, index]. */
  get order() {
    this._order ??= this.lanes
      .flatMap((lane) => lane.start.map((_, i) => [lane, i]))
      .sort(([a, i], [b, j]) => a.start[i] - b.start[j]);
    return this._order;
  }

  /** Looks for bars by a part of their name; "" ends it. The number found. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    this.found = null;
    if (!wanted) return this.bars;
    this.found = (name) => name.toLowerCase().includes(wanted);
    return this.lanes.reduce((n, lane) => n + lane.label.filter(this.found).length, 0);
  }

  isFound(lane, i) {
    return !this.found || this.found(lane.label[i]);
  }

  kind(lane, i) {
    return this.payload.kinds[lane.kind[i]];
  }

  /** What is known of a bar, as [label, value] rows. */
  facts(lane, i) {
    const kind = this.kind(lane, i);
    const rows = [["Kind", kind]];
    rows.push(["Begins at", formatInstant(lane.start[i])], ["Duration", ns(lane.duration[i])]);
    const call = this.call(lane, i);
    if (call !== null) this.callFacts(call, rows);
    else if (kind !== "compilation") this.operationFacts(lane.detail[i], rows);
    return rows;
  }

  /** Of each a label, and a text, or bytes, or bytes before and after. */
  operationFacts(i, rows) {
    for (const [label, value, after] of this.payload.operations[i]) {
      if (after === undefined) rows.push([label, typeof value === "string" ? value : bytes(value)]);
      else {
        const change = `${after < value ? "−" : "+"}${bytes(Math.abs(after - value))}`;
        rows.push([label, `${bytes(value)} → ${bytes(after)}`], ["Change", change]);
      }
    }
  }

  callFacts(k, rows) {
    const { modes } = this.payload;
    const { models } = this.state;
    rows.push(["Call", `${count(k + 1)} of ${count(modes.length)}`]);
    rows.push(["Ran as", modes[k]]);
    for (const model of models) {
      const { totals, highest, rest, between } = model.extent(k);
      if (!(rest + totals[highest]) && !between) continue;
      const where = models.length > 1 ? ` on ${model.name}` : "";
      rows.push([`Live at entry${where}`, bytes(rest + totals[0])]);
      rows.push([`Peak inside${where}`, bytes(rest + totals[highest])]);
      rows.push([`Left behind${where}`, bytes(between)]);
    }
  }

  /** The call that a bar is, null for other bars. */
  call(lane, i) {
    const kind = this.kind(lane, i);
    return kind.endsWith("operation") || kind === "compilation" ? null : lane.detail[i];
  }
}

// Operations, compiled calls and compilations over time: the lanes, their window, the chosen bar.

const AXIS = 22;
const MOST_HEIGHT = 420;

function gantt(state, root) {
  const model = new GanttModel(state.payload.gantt, state);
  const view = new View(model.end);
  const lanes = new Lanes(model, view);
  const whole = overview(view);
  const axis = new Canvas("gantt-axis", "Time");
  const cursor = el("div.cursor", { hidden: true });
  const spacer = el("div", { style: { height: "0px" } });
  const scroll = el("div.gantt-scroll", {}, lanes.canvas.node, spacer);
  const plot = el(
    "div.gantt-plot",
    {
      id: "gantt",
      tabindex: "0",
      role: "application",
      "aria-label": "Operations and calls over time",
      "aria-describedby": "gantt-keys",
    },
    axis.node,
    scroll,
    cursor,
  );
  const detail = el("div.detail.gantt-detail", { hidden: true });

  const redraw = drawn(plot, () => {
    view.width = plot.clientWidth;
    whole.draw();
    const box = { left: 0, top: -4, width: view.width, height: AXIS / 2 - 6 };
    const c = axis.begin(view.width, AXIS);
    timeAxis(c, box, view, tick);
    // The sticky canvas takes its own place in the flow; the spacer is what is left below it.
    const height = Math.min(lanes.total, MOST_HEIGHT);
    scroll.style.height = `${height}px`;
    lanes.scroll = scroll.scrollTop;
    lanes.draw(height);
    spacer.style.height = `${Math.max(0, lanes.total - height)}px`;
    const window_ = `from ${ns(view.from)} to ${ns(view.to)}`;
    plot.setAttribute("aria-label", `Operations and calls ${window_}`);
  });
  view.onChange(redraw);
  scroll.addEventListener("scroll", redraw, { passive: true });

  const choose = (bar, reveal) => {
    lanes.selected = bar;
    showDetail(bar);
    if (bar && reveal) {
      const [lane, i] = bar;
      view.reveal(lane.start[i], lane.start[i] + lane.duration[i]);
      const [top, bottom] = lanes.extent(bar);
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (bottom > scroll.scrollTop + scroll.clientHeight) {
        scroll.scrollTop = bottom - scroll.clientHeight;
      }
      announce(`${lane.label[i]}, ${ns(lane.duration[i])}`);
    }
    redraw();
  };

  /** The facts of a bar; of a call also the way to its live set. */
  function showDetail(bar) {
    detail.hidden = !bar;
    if (!bar) return;
    const [lane, i] = bar;
    const show = () => {
      view.reveal(lane.start[i], lane.start[i] + lane.duration[i]);
      plot.focus({ preventScroll: true });
    };
    const call = model.call(lane, i);
    const live = () => {
      state.select(call, state.model.extent(call).highest);
      document.getElementById("live-set").scrollIntoView();
    };
    const quiet = (text, press) => button(text, press, null, "button.quiet");
    fill(
      detail,
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

  const hovered = (bar) => {
    if (bar?.[0] === lanes.hovered?.[0] && bar?.[1] === lanes.hovered?.[1]) return;
    lanes.hovered = bar;
    redraw();
  };
  interact(scroll, view, {
    leave: () => {
      cursor.hidden = true;
      hideTooltip();
      hovered(null);
    },
    scroll: (pixels) => (scroll.scrollTop += pixels),
    hover: (x, y, event) => {
      cursor.hidden = false;
      cursor.style.left = `${x}px`;
      const bar = lanes.find(x, y);
      hovered(bar);
      if (!bar) return hideTooltip();
      const [lane, i] = bar;
      showTooltip(event, lane.label[i], model.facts(lane, i));
    },
    click: (x, y) => {
      plot.focus({ preventScroll: true });
      choose(lanes.find(x, y), false);
    },
  });
  plot.addEventListener("keydown", (event) => chartKey(event, model, view, lanes, choose));

  const buttons = el(
    "div.tabs",
    { role: "group", "aria-label": "Window" },
    [
      ["◀", "Earlier", () => view.pan(-view.width / 2)],
      ["▶", "Later", () => view.pan(view.width / 2)],
      ["−", "Zoom out", () => view.zoom(1 / 2)],
      ["+", "Zoom in", () => view.zoom(2)],
      ["Whole run", "Show everything", () => view.whole()],
      ...callsWindow(model, view),
    ].map(([text, title, press]) => button(text, press, title)),
  );
  const found = el("span.dim.num", { "aria-live": "polite" });
  const find = el("input", {
    type: "search",
    placeholder: "Find by name",
    "aria-label": "Find bars by name",
    on: {
      input: () => {
        const n = model.find(find.value);
        found.textContent = model.found ? `${count(n)} found` : "";
        redraw();
      },
      keydown: (event) => {
        const key = event.shiftKey ? "p" : "n";
        if (event.key !== "Enter") return;
        chartKey(new KeyboardEvent("keydown", { key }), model, view, lanes, choose);
      },
    },
  });
  globalThis.memprof.chart = { model, view, lanes };
  fill(
    root,
    el(
      "div.toolbar",
      {},
      barLegend(model),
      el("div.tabs", {}, el("label.gantt-find", {}, found, " ", find), buttons),
    ),
    plot,
    whole.bar,
    help(
      "gantt-keys",
      "[Ctrl] and the wheel, or [+] [−] zooms, drag or [←] [→] pans, [N] [P] goes to the next or " +
        "previous bar, [Enter] zooms to it, [0] shows the whole run.",
    ),
    detail,
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

function chartKey(event, model, view, lanes, choose) {
  const step = (by) => {
    const { order } = model;
    const [lane, i] = lanes.selected ?? [];
    let at = order.findIndex(([l, j]) => l === lane && j === i);
    if (at < 0) at = order.findIndex(([l, j]) => l.start[j] >= view.from) - (by > 0);
    for (at += by; at >= 0 && at < order.length; at += by) {
      if (model.isFound(...order[at])) return choose(order[at], true);
    }
    return null;
  };
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
    Escape: () => choose(null, false),
  });
}
