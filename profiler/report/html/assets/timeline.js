// Memory over time, stacked by category, and the choice of an instant on it.
(function (memprof) {
  "use strict";

  const { el, fill, oncePerFrame } = memprof.dom;
  const { Axis, columns, byteStep, busyShare } = memprof.columns;
  const PLOT = { left: 70, right: 14, top: 22, bottom: 56 };

  // From the bottom: what stays for the whole run first, so that its level is easy to see.
  const STACK = [
    "parameter",
    "optimizer_state",
    "constant",
    "gradient",
    "activation",
    "input",
    "output",
    "autograd_detail",
    "temporary",
    "unknown",
  ];

  /**
   * @param {object} state see report.js: device model, selection, `select(call, position)`
   * @param {HTMLElement} root
   */
  function timeline(state, root) {
    let axis = null;
    // Where compiling took most of the time, the clock would show little else.
    let mode = busyShare(state.model) < 0.3 ? "calls" : "time";
    let window_ = [0, 1];
    let shown = null;
    const plot = el("div.timeline-plot");
    const cursor = el("div.timeline-cursor", { hidden: true });
    const peak = el("div.timeline-peak", { hidden: true }, "peak");
    const slider = el(
      "div.timeline",
      {
        tabindex: "0",
        role: "slider",
        id: "timeline",
        "aria-label": "Instant",
        "aria-describedby": "timeline-help",
        "aria-orientation": "horizontal",
        "aria-valuemin": "0",
        on: { keydown: onKey },
      },
      plot,
      cursor,
      peak,
    );
    const modes = toggles(
      "Horizontal axis",
      [
        ["time", "Time", "by the clock"],
        ["calls", "Calls", "every call equally wide"],
      ],
      (value) => {
        mode = value;
        rebuild();
      },
    );
    const zooms = el(
      "div.tabs",
      { role: "group", "aria-label": "Zoom" },
      button("Whole run", () => zoomTo(0, axis.end)),
      button("This call", () => zoomToCalls(0)),
      button("± 5 calls", () => zoomToCalls(5)),
    );
    const legend = el("ul.legend", { "aria-label": "Categories" });
    fill(
      root,
      el("div.toolbar", {}, legend, el("div.toolbar-right", {}, modes.element, zooms)),
      slider,
      el(
        "p.help",
        { id: "timeline-help" },
        "Click an instant, or use ",
        ["←", "→"].map((k) => el("kbd", {}, k)),
        " for the next one, ",
        el("kbd", {}, "Shift"),
        " with them for the next call, ",
        ["Home", "End"].map((k) => el("kbd", {}, k)),
        " for the first and last, ",
        el("kbd", {}, "P"),
        " for the peak. The stack is the highest instant of each pixel, the thin line the lowest. ",
        "Within a call, instants are evenly spread; calls that ran side by side follow each other.",
      ),
    );
    const chart = echarts.init(plot, null, { renderer: "canvas" });
    const refresh = oncePerFrame(draw);

    chart.on("datazoom", () => {
      const zoom = chart.getOption().dataZoom[0];
      window_ = [zoom.startValue, zoom.endValue];
      refresh();
    });
    chart.getZr().on("click", (event) => {
      const at = positionAt(event.offsetX);
      if (at) {
        state.select(...at);
        slider.focus({ preventScroll: true });
      }
    });
    chart.getZr().on("mousemove", (event) => hover(event));
    chart.getZr().on("globalout", memprof.tooltip.hide);
    new ResizeObserver(() => {
      chart.resize();
      refresh();
    }).observe(plot);
    memprof.theme.onChange(rebuild);

    /** A new device, axis or theme. */
    function rebuild() {
      axis = new Axis(state.model, mode);
      modes.set(mode);
      window_ = [0, axis.end || 1];
      drawLegend();
      chart.setOption(frame(), { notMerge: true });
      draw();
    }

    function frame() {
      const base = memprof.theme.chartBase();
      return {
        animation: false,
        textStyle: base.textStyle,
        aria: { enabled: false },
        grid: { ...PLOT, containLabel: false },
        xAxis: {
          type: "value",
          // The whole run: the zoom below shows a part of it, and series have only that part.
          min: 0,
          max: axis.end || 1,
          ...base.axis,
          splitLine: { show: false },
          axisLabel: {
            ...base.axis.axisLabel,
            hideOverlap: true,
            formatter: (x) =>
              mode === "calls"
                ? x < state.model.length && Number.isInteger(x)
                  ? `call ${memprof.format.count(x + 1)}`
                  : ""
                : memprof.format.tick(x, window_[1] - window_[0]),
          },
        },
        yAxis: {
          type: "value",
          min: 0,
          ...base.axis,
          axisLine: { show: false },
          axisTick: { show: false },
          axisLabel: { ...base.axis.axisLabel, formatter: memprof.format.bytes },
        },
        dataZoom: [
          {
            type: "slider",
            filterMode: "none",
            showDataShadow: false,
            showDetail: false,
            brushSelect: false,
            height: 16,
            bottom: 8,
            startValue: window_[0],
            endValue: window_[1],
            borderColor: memprof.theme.color("--line"),
            fillerColor: memprof.theme.color("--accent-weak"),
            handleStyle: {
              color: memprof.theme.color("--raised"),
              borderColor: memprof.theme.color("--accent"),
            },
            moveHandleStyle: { color: memprof.theme.color("--line-strong") },
          },
          { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false },
        ],
        series: [],
      };
    }

    function draw() {
      if (!axis || !state.model.length) return;
      const width = Math.max(50, Math.floor(plot.clientWidth - PLOT.left - PLOT.right));
      const [from, to] = window_;
      shown = columns(state.model, axis, from, to, width);
      const data = (values) => {
        const out = new Array(width + 1);
        for (let c = 0; c < width; c++) out[c] = [shown.x[c], values[c]];
        out[width] = [to, values[width - 1]];
        return out;
      };
      // Between calls a pixel or two wide the outlines would cover what they outline.
      const calls = axis.find(to)[0] - axis.find(from)[0] + 1;
      const outline = calls * 8 < width ? 0.6 : 0;
      // Half a pixel: of less, the edges of steps would be all that shows.
      const visible = Math.max(...shown.high) / (2 * plot.clientHeight);
      const names = state.model.categories;
      const series = STACK.map((name) => [name, shown.categories[names.indexOf(name)]])
        .filter(([, values]) => values.some((v) => v > visible))
        .map(([name, values]) => ({
          type: "line",
          name,
          stack: "live",
          step: "end",
          symbol: "none",
          silent: true,
          lineStyle: { width: outline, color: memprof.theme.color("--page") },
          areaStyle: { color: memprof.theme.category(name), opacity: 1 },
          itemStyle: { color: memprof.theme.category(name) },
          emphasis: { disabled: true },
          data: data(values),
        }));
      if (shown.low.some((v, c) => v < shown.high[c])) {
        series.push({
          type: "line",
          name: "lowest",
          step: "end",
          symbol: "none",
          silent: true,
          z: 5,
          lineStyle: { width: 1, color: memprof.theme.color("--text"), opacity: outline ? 0.65 : 0.4 },
          data: data(shown.low),
        });
      }
      chart.setOption(
        { yAxis: heights(Math.max(...shown.high)), series },
        { replaceMerge: ["series"], lazyUpdate: false },
      );
      mark();
    }

    function heights(most) {
      const interval = byteStep(most || 1, 5);
      return { min: 0, max: Math.ceil((most || 1) / interval) * interval, interval };
    }

    function pixel(x) {
      const [from, to] = window_;
      const width = plot.clientWidth - PLOT.left - PLOT.right;
      return PLOT.left + ((x - from) / (to - from)) * width;
    }

    /** Puts the cursor and the peak where they belong. */
    function mark() {
      place(cursor, state.call, state.position);
      const [call, instant] = state.model.device.peak ?? [-1];
      if (call >= 0) place(peak, call, instant);
      else peak.hidden = true;
    }

    function place(node, call, position) {
      // The middle of what can be seen of the instant: its edge is the next one's too.
      const [from, to] = window_;
      const start = axis.at(call, position);
      const end = edgeAfter(call, position);
      const inside = end > from && start < to;
      const x = pixel(inside ? (Math.max(start, from) + Math.min(end, to)) / 2 : (start + end) / 2);
      node.hidden = !(x >= PLOT.left - 1 && x <= plot.clientWidth - PLOT.right + 1);
      node.style.left = `${x}px`;
    }

    function edgeAfter(call, position) {
      if (state.model.isBetween(call, position)) return axis.starts[call + 1];
      return position === state.model.lastInstant(call)
        ? axis.ends[call]
        : axis.at(call, position + 1);
    }

    function positionAt(offset) {
      const width = plot.clientWidth - PLOT.left - PLOT.right;
      const part = (offset - PLOT.left) / width;
      if (part < 0 || part > 1 || !shown) return null;
      const c = Math.min(shown.call.length - 1, Math.floor(part * shown.call.length));
      // Where a pixel holds many instants, it stands for its highest: that is what is drawn.
      return shown.high[c] < 0 ? null : [shown.call[c], shown.position[c]];
    }

    function hover(event) {
      const at = event.offsetY < plot.clientHeight - 24 && positionAt(event.offsetX);
      if (!at) return memprof.tooltip.hide();
      const [call, position] = at;
      const row = new Float64Array(state.model.categories.length);
      state.model.categoryBytes(call, position, row);
      const rows = STACK.map((name) => [name, row[state.model.categories.indexOf(name)]])
        .filter(([, n]) => n > 0)
        .reverse()
        .map(([name, n]) => [
          name.replaceAll("_", " "),
          memprof.format.bytes(n),
          memprof.theme.category(name),
        ]);
      const total = row.reduce((a, b) => a + b, 0);
      const box = plot.getBoundingClientRect();
      memprof.tooltip.show(
        box.left + event.offsetX,
        box.top + event.offsetY,
        `${memprof.format.bytes(total)} · ${state.nameOf(call, position)}`,
        rows,
      );
    }

    function onKey(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const moves = {
        ArrowRight: () => (event.shiftKey ? state.moveCall(1) : state.move(1)),
        ArrowLeft: () => (event.shiftKey ? state.moveCall(-1) : state.move(-1)),
        ArrowUp: () => state.move(1),
        ArrowDown: () => state.move(-1),
        PageUp: () => state.moveCall(-10),
        PageDown: () => state.moveCall(10),
        Home: () => state.select(0, 0),
        End: () => state.select(state.model.length - 1, state.lastPosition(state.model.length - 1)),
      };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      move();
    }

    function zoomTo(from, to) {
      window_ = [from, to];
      chart.dispatchAction({ type: "dataZoom", startValue: from, endValue: to });
      refresh();
    }

    function zoomToCalls(around) {
      const first = Math.max(0, state.call - around);
      const last = Math.min(state.model.length - 1, state.call + around);
      const from = axis.starts[first];
      // One call alone is shown without the pause after it.
      const to = around ? axis.starts[last + 1] : axis.ends[last];
      zoomTo(from, to > from ? to : from + 1);
    }

    /** Keeps the chosen instant in the window. */
    function follow() {
      const x = axis.at(state.call, state.position);
      const [from, to] = window_;
      if (
        x < to &&
        Math.max(x, edgeAfter(state.call, state.position) - (to - from) * 1e-9) >= from
      ) {
        return mark();
      }
      const half = (to - from) / 2;
      const start = Math.max(0, Math.min(axis.end - 2 * half, x - half));
      zoomTo(start, start + 2 * half);
    }

    function describe() {
      slider.setAttribute("aria-valuemax", String(Math.max(0, state.model.length - 1)));
      slider.setAttribute("aria-valuenow", String(state.call));
      slider.setAttribute(
        "aria-valuetext",
        `${state.nameOf(state.call, state.position)}: ` +
          `${memprof.format.bytes(state.model.bytes(state.call, state.position))} live`,
      );
    }

    function drawLegend() {
      const used = new Set(
        state.model.device.items.site.map((s) => state.payload.sites.category[s]),
      );
      fill(
        legend,
        STACK.filter((name) => used.has(state.model.categories.indexOf(name))).map((name) =>
          el(
            "li",
            {},
            el("i.swatch", { style: { "--swatch": `var(--cat-${name.replaceAll("_", "-")})` } }),
            name.replaceAll("_", " "),
          ),
        ),
      );
    }

    state.onDevice(rebuild);
    state.onSelect(() => {
      follow();
      describe();
    });
    return { rebuild };
  }

  function button(label, press) {
    return el("button", { type: "button", on: { click: press } }, label);
  }

  /** Buttons of which one is pressed. */
  function toggles(label, choices, choose) {
    const buttons = choices.map(([value, text, title]) =>
      el("button", { type: "button", title, on: { click: () => choose(value) } }, text),
    );
    return {
      element: el("div.tabs", { role: "group", "aria-label": label }, buttons),
      set(value) {
        choices.forEach(([v], i) => buttons[i].setAttribute("aria-pressed", String(v === value)));
      },
    };
  }

  Object.assign(memprof, { timeline, toggles, STACK });
})((globalThis.memprof ??= {}));
