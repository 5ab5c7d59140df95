// Curves that Python has thinned (payload_curves.py): bytes that hold until the next entry.
(function (memprof) {
  "use strict";

  const { el, swatch, words } = memprof.dom;
  const { bytes, ns, tick } = memprof.format;
  const { byteAxis, timeAxis, stack, line, color } = memprof.plot;
  const PLOT = { left: 70, right: 24, top: 20, bottom: 28 };
  const LINES = [
    "--accent",
    "--cat-temporary",
    "--cat-gradient",
    "--cat-output",
    "--cat-activation",
  ];

  /** One of payload.curves, with its legend; what lies under the pointer is said. */
  function curve(data) {
    const { label, time_ns: time, peak, stacked } = data;
    const rank = (l) => memprof.STACK.indexOf(l.name);
    const found = stacked ? [...data.lines].sort((a, b) => rank(a) - rank(b)) : data.lines;
    const lines = found.map(({ name, values }, i) => ({
      name: words(name),
      values,
      variable: stacked ? memprof.theme.variable(name) : LINES[i % LINES.length],
    }));
    const key = ({ name, variable }) => el("li", {}, swatch(`var(${variable})`), name);
    const canvas = new memprof.Canvas("curve-canvas", label);
    const box = el("div.curve", {}, canvas.node);
    const first = time[0];
    const view = new memprof.View(Math.max(1, time[time.length - 1] - first));
    const sum = (i) => lines.reduce((n, l) => n + l.values[i], 0);
    const highest = (l) => l.values.reduce((a, b) => Math.max(a, b ?? 0), 0);
    const most = stacked
      ? time.reduce((n, _, i) => Math.max(n, sum(i)), 0)
      : Math.max(...lines.map(highest));

    memprof.drawn(box, () => {
      const [width, height] = [box.clientWidth, box.clientHeight];
      const area = { ...PLOT, width: width - PLOT.left - PLOT.right };
      area.height = height - PLOT.top - PLOT.bottom;
      view.width = area.width;
      const c = canvas.begin(width, height);
      const y = byteAxis(c, area, most);
      timeAxis(c, area, view, (t, span) => tick(t + first, span));
      const edges = (times) =>
        [...times, times[times.length - 1]].map((t) => PLOT.left + view.x(t - first));
      if (stacked) stack(c, edges(time), lines.map((l) => [color(l.variable), l.values]), y, 0);
      for (const { variable, values } of stacked ? [] : lines) {
        // What a snapshot does not know is as it was.
        const known = values.flatMap((v, i) => (v === null ? [] : [i]));
        line(c, edges(known.map((i) => time[i])), known.map((i) => values[i]), y, color(variable));
      }
      if (peak === null) return;
      const x = PLOT.left + view.x(peak - first);
      c.fillStyle = color("--accent");
      c.fillRect(x, PLOT.top, 1, area.height);
      c.fillStyle = color("--text-2");
      c.textAlign = "center";
      c.fillText("peak", x, PLOT.top - 13);
    });
    const find = (x) => Math.max(0, memprof.above(time, first + view.time(x - PLOT.left)) - 1);
    memprof.pointed(box, find, (i, event) => {
      const rows = lines.map((l) => [l.name, bytes(l.values[i]), `var(${l.variable})`]);
      memprof.tooltip.show(event, ns(time[i]), rows);
    });
    return el("div", {}, el("ul.legend", {}, lines.map(key)), box);
  }

  memprof.curve = curve;
})((globalThis.memprof ??= {}));
