// Curves of the page that Python has thinned: bytes that hold until the next entry.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;
  const { bytes, ns } = memprof.format;
  const { byteStep } = memprof.columns;
  const LINES = [
    "--accent",
    "--cat-temporary",
    "--cat-gradient",
    "--cat-output",
    "--cat-activation",
  ];

  /** One of payload.curves; see payload_curves.py. */
  function curve(data) {
    const { label, time_ns: time, peak, stacked } = data;
    const order = (l) => memprof.STACK.indexOf(l.name);
    const found = stacked ? [...data.lines].sort((a, b) => order(a) - order(b)) : data.lines;
    const lines = found.map(({ name, values }, i) => ({
      name: name.replaceAll("_", " "),
      values,
      stacked,
      color: () =>
        stacked ? memprof.theme.category(name) : memprof.theme.color(LINES[i % LINES.length]),
    }));
    const root = el("div");
    const box = el("div.curve", { role: "img", "aria-label": label });
    root.append(
      el(
        "ul.legend",
        {},
        lines.map((l) => {
          const swatch = el("i.swatch");
          const paint = () => swatch.style.setProperty("--swatch", l.color());
          paint();
          memprof.theme.onChange(paint);
          return el("li", {}, swatch, l.name);
        }),
      ),
      box,
    );
    const chart = echarts.init(box, null, { renderer: "canvas" });
    const most = lines.some((l) => l.stacked)
      ? Math.max(...time.map((_, i) => lines.reduce((n, l) => n + l.values[i], 0)))
      : Math.max(...lines.flatMap((l) => l.values.map((v) => v ?? 0)));
    const draw = () => {
      const base = memprof.theme.chartBase();
      const interval = byteStep(most || 1, 4);
      chart.setOption(
        {
          animation: false,
          textStyle: base.textStyle,
          grid: { left: 70, right: 24, top: 20, bottom: 28 },
          xAxis: {
            type: "value",
            min: time[0],
            max: time[time.length - 1],
            ...base.axis,
            splitLine: { show: false },
            axisLabel: { ...base.axis.axisLabel, hideOverlap: true, formatter: ns },
          },
          yAxis: {
            type: "value",
            min: 0,
            max: Math.ceil((most || 1) / interval) * interval,
            interval,
            ...base.axis,
            axisLine: { show: false },
            axisTick: { show: false },
            axisLabel: { ...base.axis.axisLabel, formatter: bytes },
          },
          series: lines.map((l, i) => ({
            type: "line",
            name: l.name,
            step: "end",
            symbol: "none",
            stack: l.stacked ? "all" : null,
            lineStyle: {
              width: l.stacked ? 0.6 : 1.5,
              color: l.stacked ? memprof.theme.color("--page") : l.color(),
            },
            areaStyle: l.stacked ? { color: l.color(), opacity: 1 } : null,
            emphasis: { disabled: true },
            markLine:
              i === 0 && peak !== null
                ? {
                    silent: true,
                    symbol: "none",
                    data: [{ xAxis: peak }],
                    label: { formatter: "peak", color: memprof.theme.color("--text-2") },
                    lineStyle: { color: memprof.theme.color("--accent") },
                  }
                : null,
            data: time.map((t, k) => [t, l.values[k]]),
          })),
        },
        { notMerge: true },
      );
    };
    chart.getZr().on("mousemove", (event) => {
      const x = chart.convertFromPixel({ xAxisIndex: 0 }, event.offsetX);
      let i = 0;
      while (i + 1 < time.length && time[i + 1] <= x) i++;
      const at = box.getBoundingClientRect();
      memprof.tooltip.show(
        at.left + event.offsetX,
        at.top + event.offsetY,
        ns(time[i]),
        lines.map((l) => [l.name, bytes(l.values[i]), l.color()]),
      );
    });
    chart.getZr().on("globalout", memprof.tooltip.hide);
    new ResizeObserver(() => chart.resize()).observe(box);
    memprof.theme.onChange(draw);
    draw();
    return root;
  }

  memprof.curve = curve;
})((globalThis.memprof ??= {}));
