// Operations, compiled calls and compilations over time: the lanes, their window, the chosen bar.
(function (memprof) {
  "use strict";

  const { el, fill, announce, swatch, button } = memprof.dom;
  const { format } = memprof;
  const AXIS = 22;
  const MOST = 420;

  function gantt(state, root) {
    const model = new memprof.GanttModel(state.payload.gantt, state);
    const view = new memprof.View(model.end);
    const lanes = new memprof.Lanes(model, view);
    const whole = memprof.overview(view);
    const axis = new memprof.Canvas("gantt-axis", "Time");
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

    const redraw = memprof.drawn(plot, () => {
      view.width = plot.clientWidth;
      whole.draw();
      const box = { left: 0, top: -4, width: view.width, height: AXIS / 2 - 6 };
      const c = axis.begin(view.width, AXIS);
      memprof.plot.timeAxis(c, box, view, format.tick);
      // The sticky canvas takes its own place in the flow; the spacer is what is left below it.
      const height = Math.min(lanes.total, MOST);
      scroll.style.height = `${height}px`;
      lanes.scroll = scroll.scrollTop;
      lanes.draw(height);
      spacer.style.height = `${Math.max(0, lanes.total - height)}px`;
      const window_ = `from ${format.ns(view.from)} to ${format.ns(view.to)}`;
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
        announce(`${lane.label[i]}, ${format.ns(lane.duration[i])}`);
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
        el("h3", {}, `${lane.label[i]} `, quiet("Show", show), call !== null && quiet("Its live set", live)),
        memprof.dom.facts(model.facts(lane, i)),
      );
    }

    const hovered = (bar) => {
      if (bar?.[0] === lanes.hovered?.[0] && bar?.[1] === lanes.hovered?.[1]) return;
      lanes.hovered = bar;
      redraw();
    };
    memprof.interact(scroll, view, {
      leave: () => {
        cursor.hidden = true;
        memprof.tooltip.hide();
        hovered(null);
      },
      scroll: (pixels) => (scroll.scrollTop += pixels),
      hover: (x, y, event) => {
        cursor.hidden = false;
        cursor.style.left = `${x}px`;
        const bar = lanes.find(x, y);
        hovered(bar);
        if (!bar) return memprof.tooltip.hide();
        const [lane, i] = bar;
        memprof.tooltip.show(event, lane.label[i], model.facts(lane, i));
      },
      click: (x, y) => {
        plot.focus({ preventScroll: true });
        choose(lanes.find(x, y), false);
      },
    });
    plot.addEventListener("keydown", (event) => onKey(event, model, view, lanes, choose));

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
          found.textContent = model.found ? `${format.count(n)} found` : "";
          redraw();
        },
        keydown: (event) => {
          const key = event.shiftKey ? "p" : "n";
          if (event.key !== "Enter") return;
          onKey(new KeyboardEvent("keydown", { key }), model, view, lanes, choose);
        },
      },
    });
    memprof.chart = { model, view, lanes };
    fill(
      root,
      el(
        "div.toolbar",
        {},
        legend(model),
        el("div.tabs", {}, el("label.gantt-find", {}, found, " ", find), buttons),
      ),
      plot,
      whole.bar,
      memprof.dom.help(
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

  function legend(model) {
    const entry = ({ label, variable, count }) =>
      el("li", {}, swatch(`var(${variable})`), `${label} `, el("span.num.dim", {}, format.count(count)));
    const list = ([title, entries]) =>
      el("ul.legend", { "aria-label": title }, el("li", {}, el("strong", {}, title)), entries.map(entry));
    return el("div", {}, model.payload.legend.map(list));
  }

  function onKey(event, model, view, lanes, choose) {
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
    memprof.dom.onKey(event, {
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

  memprof.gantt = gantt;
})((globalThis.memprof ??= {}));
