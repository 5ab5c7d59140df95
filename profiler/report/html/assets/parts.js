// The report's optional parts: advice, the data-flow profile, the tracker's record.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;
  const { bytes, ns, share, count } = memprof.format;
  const { table, bar, bytesCell } = memprof.table;
  const { byteStep } = memprof.columns;
  const LINES = [
    "--accent",
    "--cat-temporary",
    "--cat-gradient",
    "--cat-output",
    "--cat-activation",
  ];

  /** What to change, most bytes first. */
  function advice(state, root) {
    const findings = state.payload.advice;
    if (!findings.length) {
      return root.append(
        el("p.empty", {}, "Nothing was found that would save 2 % of the peak or of a pool."),
      );
    }
    root.append(
      el(
        "ol.advice",
        {},
        findings.map((f) =>
          el(
            "li",
            {},
            el("h3", {}, "up to ", el("span.num", {}, bytes(f.nbytes)), ` ${f.whose}: ${f.title}`),
            el("p", {}, f.change),
            f.evidence.length > 0 &&
              el(
                "details",
                {},
                el("summary", {}, `Evidence (${count(f.evidence.length)})`),
                el(
                  "ul",
                  {},
                  f.evidence.slice(0, 20).map((e) => el("li", {}, evidence(state, e))),
                ),
              ),
          ),
        ),
      ),
    );
  }

  function evidence(state, e) {
    const [file, line, , code] = state.model.frame(e.frame);
    const where = [
      e.graph,
      e.node,
      e.module === "" ? "(root)" : e.module,
      file && `${file}:${line}`,
    ];
    return [
      el("span.num", {}, bytes(e.nbytes)),
      ` ${e.text}${e.count > 1 ? `, ${count(e.count)} times` : ""} `,
      el("span.dim.code", {}, where.filter(Boolean).join(" · ")),
      code && el("div.code", {}, code),
    ];
  }

  /** Live bytes of all code, as torch.profiler's events tell them. */
  function dataflow(state, root) {
    const devices = state.payload.dataflow;
    if (!devices) return (root.hidden = true);
    if (!devices.length) {
      return root.append(
        el("p.empty", {}, "The torch.profiler run has no memory events: was profile_memory=True?"),
      );
    }
    for (const device of devices) {
      if (!device.peak) continue;
      const [at, most] = device.peak;
      const names = memprof.STACK.filter((name) => device.bytes[name]);
      root.append(
        el("h3", {}, `${device.device}: peak ${bytes(most)}`),
        el(
          "p.help",
          {},
          `From a torch.profiler run: every tensor, of eager and compiled code. The peak is ${ns(Math.max(0, at - device.time_ns[0]))} after its first event; ${count(device.entries)} changes.`,
        ),
      );
      curve(
        root,
        `Memory of ${device.device} over time by category`,
        device.time_ns,
        names.map((name) => ({
          name: name.replaceAll("_", " "),
          color: () => memprof.theme.category(name),
          values: device.bytes[name],
          stacked: true,
        })),
        at,
      );
      root.append(liveThen(state, device, most));
    }
  }

  function liveThen(state, device, most) {
    const [number, left] = device.smaller;
    return table({
      caption: `Live on ${device.device} at that peak`,
      rows: device.live,
      columns: [
        { label: "Bytes", number: true, value: (r) => r.nbytes, cell: (r) => bytesCell(r.nbytes) },
        {
          label: "Share",
          number: true,
          cell: (r) => bar(r.nbytes, most, `var(--cat-${r.category.replaceAll("_", "-")})`),
        },
        {
          label: "Category",
          value: (r) => r.category,
          cell: (r) => r.category.replaceAll("_", " "),
        },
        {
          label: "Made by",
          wide: true,
          cell: (r) => {
            const [file, line, , code] = state.model.frame(r.frame);
            const graph = r.graph === null ? null : state.model.graphs.get(r.graph)?.label;
            return [
              el("span.code", {}, r.op ?? "unknown, or made before the run"),
              code && el("div.code", {}, code),
              el(
                "div.dim.code",
                {},
                [graph, r.module === "" ? "(root)" : r.module, file && `${file}:${line}`]
                  .filter(Boolean)
                  .join(" · "),
              ),
            ];
          },
        },
      ],
      foot: [
        ...(number ? [[bytesCell(left), share(left, most), "", `${count(number)} smaller`]] : []),
        [bytesCell(most), share(most, most), "", "total"],
      ],
    });
  }

  /** What the process as a whole used, and what its operations did. */
  function tracker(state, root) {
    const t = state.payload.tracker;
    if (!t) return (root.hidden = true);
    const s = t.summary;
    const highest = [
      `live tensors ${bytes(s.tensors)}`,
      ...Object.entries(s.devices)
        .filter(([, n]) => n !== null)
        .map(([d, n]) => `${d} ${bytes(n)}`),
      s.resident !== null && `resident ${bytes(s.resident)}`,
    ];
    root.append(
      el(
        "p.help",
        {},
        "Operations beside compiled calls, on one time axis: ",
        el("code", {}, "memprof gantt FILE -o gantt.html"),
        ".",
      ),
      el(
        "p.help",
        {},
        `${count(s.snapshots)} snapshots in ${ns(s.span_ns)}; ended: ${s.state}${s.reason ? ` (${s.reason})` : ""}. Highest: ${highest.filter(Boolean).join(", ")}.`,
      ),
    );
    for (const problem of s.problems) root.append(el("p.notice", {}, problem));
    if (t.time_ns.length > 1) {
      curve(
        root,
        "Memory of the process over time",
        t.time_ns,
        t.curves.map((c, i) => ({
          name: c.name,
          color: () => memprof.theme.color(LINES[i % LINES.length]),
          values: c.values,
        })),
        null,
      );
    } else {
      root.append(
        el(
          "p.empty",
          {},
          "Too few snapshots for a curve: the run was shorter than the tracker's interval.",
        ),
      );
    }
    const inside = (o) => Math.max(...Object.values(o.peaks), -1);
    root.append(
      table({
        fit: true,
        caption: "Operations",
        rows: s.operations,
        empty:
          "No operation was tracked: put tracker.track_operation(name) around what you want to see.",
        columns: [
          {
            label: "Operation",
            wide: true,
            value: (o) => o.path,
            cell: (o) => el("span.code", {}, o.path),
          },
          {
            label: "Times",
            number: true,
            value: (o) => o.count,
            cell: (o) => count(o.count) + (o.failed ? ` (${count(o.failed)} failed)` : ""),
          },
          { label: "Total", number: true, value: (o) => o.total_ns, cell: (o) => ns(o.total_ns) },
          {
            label: "Tensors grew",
            number: true,
            value: (o) => o.tensor_bytes,
            cell: (o) => bytesCell(o.tensor_bytes),
          },
          {
            label: "Highest inside",
            number: true,
            value: inside,
            cell: (o) => (inside(o) < 0 ? "-" : bytesCell(inside(o))),
          },
        ],
      }),
      el(
        "details",
        {},
        el("summary", {}, "Where these figures come from"),
        el(
          "ul",
          {},
          t.sources.map((source) =>
            el(
              "li",
              {},
              `${source.name}${source.used ? "" : " (not used)"}: sees ${source.sees}; misses ${source.misses}`,
            ),
          ),
        ),
      ),
    );
  }

  /** A chart of curves that hold their values until the next entry. */
  function curve(root, label, time, lines, peak) {
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
  }

  Object.assign(memprof.sections, { advice, dataflow, tracker });
  memprof.curve = curve;
})((globalThis.memprof ??= {}));
