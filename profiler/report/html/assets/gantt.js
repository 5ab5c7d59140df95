// The Gantt page: panels over one window in time, and the bar that is chosen.
(function (memprof) {
  "use strict";

  const { el, fill, announce, oncePerFrame } = memprof.dom;
  const { format } = memprof;
  const { Lanes, Concurrency, Memory, Marks, Canvas, drawAxis } = memprof.ganttPanels;
  const COUNT = 54;
  const MEMORY = 150;

  function draw(payload) {
    const model = new memprof.GanttModel(payload);
    const view = new memprof.GanttView(model.end);
    const main = document.getElementById("main");
    main.classList.add("gantt");
    main.append(meta(model));
    if (!model.bars && !model.curves.length) {
      main.append(
        el(
          "p.notice",
          {},
          "This profile has no operations, no calls and no snapshots: nothing ran while it was taken.",
        ),
      );
      return;
    }
    main.append(...chart(model, view));
    memprof.ganttSections(model, main);
  }

  function meta(model) {
    const { payload } = model;
    const facts = [
      `${format.count(model.bars)} bars over ${format.ns(payload.end)}`,
      payload.wall_ms && `began ${new Date(payload.wall_ms).toISOString().replace("T", " ").slice(0, 19)} UTC`,
      payload.process &&
        payload.process.world_size > 1 &&
        `rank ${payload.process.rank} of ${payload.process.world_size}`,
    ].filter(Boolean);
    return el("p.gantt-meta", {}, facts.map((fact) => el("span", {}, fact)));
  }

  function chart(model, view) {
    const lanes = new Lanes(model, view);
    const overview = new Concurrency(model, view, true);
    const count = new Concurrency(model, view, false);
    const axis = new Canvas("gantt-axis", "Time");
    const marks = model.payload.marks.length ? new Marks(model, view) : null;
    const curves = curvesOf(model);
    const memory = curves.length ? new Memory(curves, view) : null;

    const cursor = el("div.gantt-cursor", { hidden: true });
    const spacer = el("div", { style: { height: "0px" } });
    const scroll = el("div.gantt-scroll.gantt-time", {}, lanes.canvas.node, spacer);
    const strip = (className, canvas, caption) =>
      el(`div.gantt-strip${className}`, {}, canvas.node, caption && el("span.gantt-caption", {}, caption));
    const overviewStrip = strip(".gantt-overview", overview.canvas);
    const countStrip = strip(".gantt-time", count.canvas, "running at once");
    const marksStrip = marks && strip(".gantt-time", marks.canvas);
    const memoryStrip = memory && strip(".gantt-time", memory.canvas, "memory");
    const plot = el(
      "div.gantt-plot",
      {
        id: "gantt",
        tabindex: "0",
        role: "application",
        "aria-label": "Operations and calls over time",
        "aria-describedby": "gantt-keys",
      },
      overviewStrip,
      strip(".gantt-time", axis),
      marksStrip,
      scroll,
      countStrip,
      memoryStrip,
      cursor,
    );
    const detail = el("div.gantt-detail", { hidden: true });

    memprof.chart = { model, view, lanes };
    const redraw = oncePerFrame(() => {
      view.width = plot.clientWidth;
      overview.draw(34);
      drawAxis(axis, view);
      marks?.draw();
      // The sticky canvas takes its own place in the flow; the spacer is what is left below it.
      const room = Math.max(160, innerHeight - 400);
      const height = Math.min(lanes.total, room);
      scroll.style.height = `${height}px`;
      lanes.scroll = scroll.scrollTop;
      lanes.draw(height);
      spacer.style.height = `${Math.max(0, lanes.total - height)}px`;
      count.draw(COUNT);
      memory?.draw(MEMORY + Math.min(150, room - height));
      describe(plot, view);
    });
    view.onChange(redraw);
    memprof.theme.onChange(redraw);
    scroll.addEventListener("scroll", redraw, { passive: true });
    new ResizeObserver(redraw).observe(plot);
    addEventListener("resize", redraw);

    const choose = (bar, reveal) => {
      lanes.selected = bar;
      showDetail(model, detail, bar, () => {
        view.reveal(bar[0].start[bar[1]], bar[0].start[bar[1]] + bar[0].duration[bar[1]]);
        plot.focus({ preventScroll: true });
      });
      if (bar && reveal) {
        const [lane, i] = bar;
        view.reveal(lane.start[i], lane.start[i] + lane.duration[i]);
        const [top, bottom] = lanes.extent(bar);
        if (top < scroll.scrollTop) scroll.scrollTop = top;
        else if (bottom > scroll.scrollTop + scroll.clientHeight) {
          scroll.scrollTop = bottom - scroll.clientHeight;
        }
        announce(`${model.name(lane, i)}, ${format.ns(lane.duration[i])}`);
      }
      redraw();
    };

    const point = (x) => {
      cursor.hidden = x === null;
      if (x !== null) cursor.style.left = `${x}px`;
    };
    const leave = () => {
      point(null);
      memprof.tooltip.hide();
      if (lanes.hovered) {
        lanes.hovered = null;
        redraw();
      }
    };
    const common = { leave, scroll: (pixels) => (scroll.scrollTop += pixels) };
    memprof.interact(scroll, view, {
      ...common,
      hover: (x, y, event) => {
        point(x);
        const bar = lanes.find(x, y);
        if (bar) {
          const [lane, i] = bar;
          memprof.tooltip.show(event.clientX, event.clientY, model.name(lane, i), model.facts(lane, i), note(model, bar));
        } else {
          memprof.tooltip.hide();
        }
        if (bar?.[0] !== lanes.hovered?.[0] || bar?.[1] !== lanes.hovered?.[1]) {
          lanes.hovered = bar;
          redraw();
        }
      },
      click: (x, y) => {
        plot.focus({ preventScroll: true });
        choose(lanes.find(x, y), false);
      },
    });
    const at = (x) => `at ${memprof.instant(view.time(x))}`;
    memprof.interact(countStrip, view, {
      ...common,
      hover: (x, _y, event) => {
        point(x);
        const n = model.concurrency.at(view.time(x)) ?? 0;
        memprof.tooltip.show(event.clientX, event.clientY, `${format.count(n)} ${at(x)}`, []);
      },
    });
    if (memory) {
      memprof.interact(memoryStrip, view, {
        ...common,
        hover: (x, _y, event) => {
          point(x);
          const rows = curves
            .filter((k) => k.shown)
            .map((k) => [k.label, format.bytes(k.source.at(view.time(x))), `var(${k.variable})`]);
          const tensors = model.largestNear(view.time(x), 8 / view.scale);
          rows.push(...tensors.map(([name, n]) => [name, format.bytes(n)]));
          const note = tensors.length ? "Without a colour: the largest tensors of this snapshot." : null;
          memprof.tooltip.show(event.clientX, event.clientY, at(x), rows, note);
        },
      });
    }
    if (marks) {
      memprof.interact(marksStrip, view, {
        ...common,
        hover: (x, _y, event) => {
          point(x);
          const near = marks.near(x);
          if (!near.length) return memprof.tooltip.hide();
          const rows = near.slice(0, 8).map((m) => [`${m.name} ${m.of}`, format.ns(m.time)]);
          const more = near.length > 8 ? `and ${near.length - 8} more` : near[0].text;
          return memprof.tooltip.show(event.clientX, event.clientY, format.count(near.length) + (near.length > 1 ? " marks" : " mark"), rows, more);
        },
      });
    }
    window_(overviewStrip, view);
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
      ].map(([text, title, press]) =>
        el("button", { type: "button", title, "aria-label": title, on: { click: press } }, text),
      ),
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
          if (event.key === "Enter") onKey(new KeyboardEvent("keydown", { key: event.shiftKey ? "p" : "n" }), model, view, lanes, choose);
        },
      },
    });
    const keys = el(
      "p.gantt-keys",
      { id: "gantt-keys" },
      "Wheel or ",
      kbd("+"),
      kbd("−"),
      " zooms, drag or ",
      kbd("←"),
      kbd("→"),
      " pans, ",
      kbd("N"),
      kbd("P"),
      " goes to the next or previous bar, ",
      kbd("Enter"),
      " zooms to it, ",
      kbd("0"),
      " shows the whole run.",
    );
    redraw();
    return [
      el(
        "div.gantt-toolbar",
        {},
        legend(model),
        el("div.gantt-tools", {}, el("label.gantt-find", {}, found, find), buttons),
      ),
      plot,
      memory && curveButtons(curves, redraw),
      keys,
      detail,
    ].filter(Boolean);
  }

  function kbd(text) {
    return [el("kbd", {}, text), " "];
  }

  /** Where calls are a small part of the run, a button that shows just these. */
  function callsWindow(model, view) {
    const { start, end } = model.payload.calls;
    if (!start.length) return [];
    const from = Math.min(...minmax(start));
    const to = Math.max(...minmax(end));
    if (to - from > 0.9 * view.end) return [];
    const room = (to - from) * 0.02;
    return [["Calls", "From the first compiled call to the last", () => view.set(from - room, to + room)]];
  }

  function minmax(values) {
    let low = Infinity;
    let high = -Infinity;
    for (const v of values) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
    return [low, high];
  }

  function legend(model) {
    return el(
      "div.gantt-legend",
      {},
      model.legend.map(([title, entries]) => [
        el("strong", {}, title),
        el(
          "ul",
          { "aria-label": title },
          entries.map(({ label, variable, count }) =>
            el(
              "li",
              {},
              el("i.swatch", { style: { "--swatch": `var(${variable})` } }),
              `${label} `,
              el("span.num", {}, format.count(count)),
            ),
          ),
        ),
      ]),
    );
  }

  /** The curves that there are, with a colour each; what would flatten the others is off. */
  function curvesOf(model) {
    const several = new Set([...model.live, ...model.curves].map((c) => c.device)).size > 1;
    const all = [
      ...model.live.map((source) => ({ source, name: "compiled code, live", device: source.device })),
      ...model.curves.map((source) => ({ source, name: NAMES[source.name] ?? source.name, device: source.device })),
    ].map((curve, i) => ({
      ...curve,
      label: several ? `${curve.name}, ${curve.device}` : curve.name,
      variable: `--curve-${i % 6}`,
      most: highest(curve.source, model.end),
      shown: true,
    }));
    const inner = all.filter((c) => !WIDE.has(c.source.name)).map((c) => c.most);
    const limit = 8 * Math.max(0, ...inner);
    for (const curve of all) curve.shown = curve.most <= limit || !limit || !WIDE.has(curve.source.name);
    return all.filter((c) => c.most > 0);
  }

  const NAMES = {
    tensors: "tensors of Python",
    allocated: "allocated",
    reserved: "reserved",
    resident: "resident",
    "data flow": "data-flow profile",
  };
  const WIDE = new Set(["allocated", "reserved", "resident"]);

  function highest(source, end) {
    let most = 0;
    source.each(0, end, Infinity, (_a, _b, _low, high) => {
      if (high > most) most = high;
    });
    return most;
  }

  function curveButtons(curves, redraw) {
    return el(
      "div.gantt-curves",
      { role: "group", "aria-label": "Memory curves" },
      curves.map((curve) => {
        const button = el(
          "button",
          {
            type: "button",
            "aria-pressed": String(curve.shown),
            on: {
              click: () => {
                curve.shown = !curve.shown;
                button.setAttribute("aria-pressed", String(curve.shown));
                redraw();
              },
            },
          },
          el("i.swatch", { style: { "--swatch": `var(${curve.variable})` } }),
          `${curve.label}, at most ${format.bytes(curve.most)}`,
        );
        return button;
      }),
    );
  }

  /** Dragging in the overview moves the window; a click puts its middle there. */
  function window_(strip, view) {
    let held = false;
    const to = (event) => {
      const box = strip.getBoundingClientRect();
      const middle = ((event.clientX - box.left) / box.width) * view.end;
      const span = view.to - view.from;
      view.set(middle - span / 2, middle + span / 2);
    };
    strip.addEventListener("pointerdown", (event) => {
      held = true;
      strip.setPointerCapture(event.pointerId);
      to(event);
    });
    strip.addEventListener("pointermove", (event) => held && to(event));
    for (const end of ["pointerup", "pointercancel"]) {
      strip.addEventListener(end, () => (held = false));
    }
  }

  function onKey(event, model, view, lanes, choose) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
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
    const moves = {
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
    };
    const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!move) return;
    event.preventDefault();
    move();
  }

  function describe(plot, view) {
    plot.setAttribute(
      "aria-label",
      `Operations and calls from ${format.ns(view.from)} to ${format.ns(view.to)}`,
    );
  }

  /** What does not fit on the bar: the path of an operation. */
  function note(model, [lane, i]) {
    const { operations, strings } = model.payload;
    if (!model.kind(lane, i).endsWith("operation")) return null;
    const path = strings[operations.path[lane.detail[i]]];
    return path === model.name(lane, i) ? null : path;
  }

  function showDetail(model, node, bar, zoomTo) {
    node.hidden = !bar;
    if (!bar) return;
    const [lane, i] = bar;
    const facts = model.facts(lane, i);
    const path = note(model, bar);
    if (path) facts.push(["Path", path]);
    fill(
      node,
      el("h2", {}, `${model.name(lane, i)} `, el("button.quiet", { type: "button", on: { click: zoomTo } }, "Show")),
      el(
        "dl.gantt-facts",
        {},
        facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd.num", {}, value))),
      ),
    );
  }

  memprof.start(draw);
})((globalThis.memprof ??= {}));
