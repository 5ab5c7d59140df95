// Operations, compiled calls and compilations over time: lanes of rows of bars, their window, the
// chosen bar. A bar is its number in the columns of payload_gantt.py, which go row by row.

const ROW = 18;
const BAR = 16;
const HEAD = 20;
const AXIS = 22;
const MOST_HEIGHT = 420;
/** The window of which instants are told apart: they need more digits than durations. */
const DIGITS = 2e4;

/** Where lanes and rows are, in pixels from the top; a row has the bars from `first` to `end`. */
function placed(lanes) {
  const heads = [];
  const rows = [];
  let [top, first] = [0, 0];
  for (const { name, rows: counts } of lanes) {
    heads.push({ name, top, bars: counts.reduce((a, b) => a + b, 0) });
    top += HEAD;
    for (const n of counts) {
      rows.push({ top, first, end: first + n });
      top += ROW;
      first += n;
    }
    top += 4;
  }
  return { heads, rows, height: top + 4 };
}

function gantt(state, root) {
  const { bars, lanes, modes, pauses, calls, all_calls: allCalls, ...all } = state.payload.gantt;
  const { start, duration, call, color: colors, legend } = bars;
  const { heads, rows, height: total } = placed(lanes);
  const view = new View(Math.max(1, all.end), () => redraw());
  const whole = overview(view);
  const axis = canvas("gantt-axis", "Time");
  const picture = canvas("gantt-lanes-canvas", "Operations and calls");
  const cursor = el("div.cursor", { hidden: true });
  const spacer = el("div", { style: { height: "0px" } });
  const scroll = el("div.gantt-scroll", {}, picture, spacer);
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
  let hovered = null;
  let selected = null;
  /** Of each name whether it is looked for, null where none is; bars in order of start. */
  let wanted = null;
  let order = null;

  const nameOf = (i) => cellAt(bars.name, i);
  const kindOf = (i) => cellAt(bars.kind, i);
  const endOf = (i) => start[i] + duration[i];
  const rowOf = (i) => rows.findLast((row) => row.first <= i);
  const isFound = (i) => !wanted || wanted[bars.name.at[i]];
  const reveal = (i) => view.reveal(start[i], endOf(i));
  const inOrder = () => (order ??= [...start.keys()].sort((a, b) => start[a] - start[b]));

  // ---- the picture

  const redraw = drawn(plot, () => {
    view.width = plot.clientWidth;
    whole.draw();
    const box = { left: 0, top: -4, width: view.width, height: AXIS / 2 - 6 };
    timeAxis(begin(axis, view.width, AXIS), box, view, tick);
    // The sticky canvas takes its own place in the flow; the spacer is what is left below it.
    const height = Math.min(total, MOST_HEIGHT);
    scroll.style.height = `${height}px`;
    draw(height);
    spacer.style.height = `${Math.max(0, total - height)}px`;
    plot.ariaLabel = `Operations and calls from ${ns(view.from)} to ${ns(view.to)}`;
  });

  function draw(height) {
    const c = begin(picture, view.width, height);
    c.fillStyle = color("--line");
    for (const t of view.ticks(110)) c.fillRect(Math.round(view.x(t)), 0, 1, height);
    // Where the tracker was off, nothing was recorded: striped.
    c.fillStyle = color("--line-strong");
    c.globalAlpha = 0.4;
    for (const [from, to] of pauses) {
      const a = Math.max(0, view.x(from));
      const b = Math.min(view.width, view.x(to));
      for (let y = 0; b > a && y < height; y += 6) c.fillRect(a, y, b - a, 1);
    }
    c.globalAlpha = 1;
    c.translate(0, -scroll.scrollTop);
    const fills = colors.of.map(color);
    const inks = fills.map(textOn);
    const isSeen = ({ top }) => top < scroll.scrollTop + height && top + HEAD > scroll.scrollTop;
    for (const row of rows.filter(isSeen)) drawRow(c, row, fills, inks);
    for (const head of heads.filter(isSeen)) drawHead(c, head);
    outline(c, hovered, color("--text"), 1);
    outline(c, selected, color("--accent"), 2);
  }

  function drawHead(c, { name, top, bars: n }) {
    c.fillStyle = color("--line-strong");
    if (top) c.fillRect(0, top, view.width, 1);
    const plain = c.font;
    c.font = `600 ${plain}`;
    c.fillStyle = color("--text");
    c.fillText(name, 6, top + HEAD / 2 + 1);
    const { width } = c.measureText(name);
    c.font = plain;
    c.fillStyle = color("--text-2");
    c.fillText(count(n), 12 + width, top + HEAD / 2 + 1);
  }

  /** At most one bar a pixel: the first, but before others one that is looked for, or failed. */
  function drawRow(c, { top, first, end }, fills, inks) {
    const matters = (i) => (wanted ? isFound(i) : kindOf(i) === "failed operation");
    let next = Math.max(first, above(start, view.from, first, end) - 1);
    while (next < end && start[next] <= view.to) {
      let i = next;
      const a = Math.round(Math.max(-2, view.x(start[i])));
      const b = Math.max(a + 1, Math.round(Math.min(view.width + 2, view.x(endOf(i)))));
      for (next += 1; b - a === 1 && next < end && view.x(start[next]) <= a + 0.5; next++) {
        if (!matters(i) && matters(next)) i = next;
      }
      if (b < 0) continue;
      c.globalAlpha = isFound(i) ? 1 : 0.18;
      c.fillStyle = fills[colors.at[i]];
      c.fillRect(a, top + 1, b - a > 4 ? b - a - 1 : b - a, BAR);
      if (b - a <= 26) continue;
      const left = Math.max(0, a);
      c.fillStyle = inks[colors.at[i]];
      write(c, nameOf(i), left + 4, top + 1 + BAR / 2, b - left - 8);
    }
    c.globalAlpha = 1;
  }

  function outline(c, i, style, thick) {
    if (i === null) return;
    const a = Math.max(-4, view.x(start[i]));
    const b = Math.min(view.width + 4, view.x(endOf(i)));
    if (b < -2 || a > view.width + 2) return;
    c.strokeStyle = style;
    c.lineWidth = thick;
    c.strokeRect(a - 0.5, rowOf(i).top + 0.5, Math.max(3, b - a), BAR + 1);
  }

  /** The bar at a place of the canvas, or the nearest of its row within two pixels; else null. */
  function barAt(x, y) {
    const at = y + scroll.scrollTop;
    const row = rows.find(({ top }) => top <= at && at < top + ROW);
    if (!row) return null;
    const time = view.time(x);
    const away = (i) => Math.max(0, start[i] - time, time - endOf(i));
    const next = above(start, time, row.first, row.end);
    const near = [next - 1, next].filter((i) => row.first <= i && i < row.end);
    const [nearest] = near.sort((a, b) => away(a) - away(b));
    return nearest !== undefined && away(nearest) * view.scale <= 2 ? nearest : null;
  }

  // ---- what is known of a bar

  /** [label, value] rows. Of an operation Python has a text, or bytes, or bytes before and after. */
  function known(i) {
    const told = bars.facts[i].flatMap(([label, value, after]) => {
      if (after === undefined) return [[label, typeof value === "string" ? value : bytes(value)]];
      const change = `${after < value ? "−" : "+"}${bytes(Math.abs(after - value))}`;
      return [
        [label, `${bytes(value)} → ${bytes(after)}`],
        ["Change", change],
      ];
    });
    return [
      ["Kind", kindOf(i)],
      ["Begins at", tick(start[i], DIGITS)],
      ["Duration", ns(duration[i])],
      ...(call[i] === null ? told : ofCall(call[i])),
    ];
  }

  function ofCall(k) {
    const { models } = state;
    const live = models.flatMap((model) => {
      const { totals, highest, beside, left } = model.extent(k);
      if (!(beside.total + totals[highest]) && !left.total) return [];
      const where = models.length > 1 ? ` on ${model.name}` : "";
      return [
        [`Live at entry${where}`, bytes(beside.total + totals[0])],
        [`Peak inside${where}`, bytes(beside.total + totals[highest])],
        [`Left behind${where}`, bytes(left.total)],
      ];
    });
    return [["Call", `${count(k + 1)} of ${count(modes.length)}`], ["Ran as", modes[k]], ...live];
  }

  // ---- the chosen bar

  function choose(i, show) {
    selected = i;
    more.hidden = i === null;
    if (i !== null) showMore(i);
    if (i !== null && show) {
      reveal(i);
      const { top } = rowOf(i);
      const lowest = top + ROW - scroll.clientHeight;
      scroll.scrollTop = Math.max(lowest, Math.min(top, scroll.scrollTop));
      announce(`${nameOf(i)}, ${ns(duration[i])}`);
    }
    redraw();
  }

  /** The facts of a bar; of a call also the way to its live set. */
  function showMore(i) {
    const show = () => {
      reveal(i);
      plot.focus({ preventScroll: true });
    };
    const live = () => {
      state.select(call[i], state.model.extent(call[i]).highest);
      document.getElementById("live-set").scrollIntoView();
    };
    const quiet = (text, press) => button(text, press, null, "button.quiet");
    const buttons = [quiet("Show", show), call[i] !== null && quiet("Its live set", live)];
    fill(more, el("h3", {}, `${nameOf(i)} `, buttons), facts(known(i)));
  }

  /** Chooses the next bar in order of start, of those that are found; with -1 the one before. */
  function step(by) {
    const inTime = inOrder();
    let at = inTime.indexOf(selected);
    if (at < 0) at = inTime.findIndex((i) => start[i] >= view.from) - (by > 0);
    for (at += by; at >= 0 && at < inTime.length; at += by) {
      if (isFound(inTime[at])) return choose(inTime[at], true);
    }
  }

  // ---- pointer, keys and buttons

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
        if (selected === null) return;
        const room = Math.max(duration[selected] * 0.1, 50);
        view.set(start[selected] - room, endOf(selected) + room);
      },
      Escape: () => choose(null),
    });
  }

  function hover(i) {
    if (i === hovered) return;
    hovered = i;
    redraw();
  }

  scroll.addEventListener("scroll", redraw, { passive: true });
  interact(scroll, view, {
    leave() {
      cursor.hidden = true;
      hideTooltip();
      hover(null);
    },
    scroll: (pixels) => (scroll.scrollTop += pixels),
    hover(x, y, event) {
      cursor.hidden = false;
      cursor.style.left = `${x}px`;
      const i = barAt(x, y);
      hover(i);
      if (i === null) hideTooltip();
      else showTooltip(event, nameOf(i), known(i));
    },
    click(x, y) {
      plot.focus({ preventScroll: true });
      choose(barAt(x, y));
    },
  });

  const buttons = [
    ["◀", "Earlier", () => view.pan(-view.width / 2)],
    ["▶", "Later", () => view.pan(view.width / 2)],
    ["−", "Zoom out", () => view.zoom(1 / 2)],
    ["+", "Zoom in", () => view.zoom(2)],
    ["Whole run", "Show everything", () => view.whole()],
  ];
  const [from, to] = allCalls ?? [0, Infinity];
  if (to - from <= 0.9 * view.end) {
    const room = (to - from) * 0.02;
    const only = () => view.set(from - room, to + room);
    buttons.push(["Calls", "From the first compiled call to the last", only]);
  }
  const found = el("span.dim.num", { "aria-live": "polite" });
  const find = el("input", {
    type: "search",
    placeholder: "Find by name",
    "aria-label": "Find bars by name",
    on: {
      input() {
        const text = find.value.trim().toLowerCase();
        wanted = text ? bars.name.of.map((name) => name.toLowerCase().includes(text)) : null;
        found.textContent = text ? `${count(inOrder().filter(isFound).length)} found` : "";
        redraw();
      },
      keydown: (event) => event.key === "Enter" && step(event.shiftKey ? -1 : 1),
    },
  });
  const tools = buttons.map(([text, title, press]) => button(text, press, title));
  fill(
    root,
    el(
      "div.toolbar",
      {},
      barLegend(legend),
      el(
        "div.tabs",
        {},
        el("label.gantt-find", {}, found, " ", find),
        el("div.tabs", { role: "group", "aria-label": "Window" }, tools),
      ),
    ),
    plot,
    whole.bar,
    help(
      "gantt-keys",
      "[Ctrl] and the wheel, or [+] [−] zooms, drag or [←] [→] pans, [N] [P] goes to the next or " +
        "previous bar, [Enter] zooms to it, [0] shows the whole run.",
    ),
    more,
  );
  if (calls) view.set(...calls);
  globalThis.memprof.chart = { bars, view, inOrder, nameOf, kindOf, rowOf, picture, scroll, draw };
}

function barLegend(legend) {
  const entry = ({ label, variable, count: n }) =>
    el("li", {}, swatch(`var(${variable})`), `${label} `, el("span.num.dim", {}, count(n)));
  const list = ([title, entries]) => [el("li", {}, el("strong", {}, title)), entries.map(entry)];
  const groups = [...Map.groupBy(legend, (e) => e.title)];
  return el(
    "div",
    {},
    groups.map((g) => el("ul.legend", { "aria-label": g[0] }, list(g))),
  );
}
