// Which placement of the payload a call's replay has, and what is where at an instant of it.

/** The blocks that are there at an instant, by address; what they leave free. */
function blocksAt({ segments, blocks }, instant) {
  const { address, nbytes, begin, end } = blocks;
  const live = [...address.keys()].filter((b) => begin[b] <= instant && instant < end[b]);
  let largest = 0;
  for (const [start, size] of segments) {
    let at = start;
    for (const b of live) {
      if (address[b] < start || address[b] >= start + size) continue;
      largest = Math.max(largest, address[b] - at);
      at = address[b] + nbytes[b];
    }
    largest = Math.max(largest, start + size - at);
  }
  const reserved = segments.reduce((n, [, size]) => n + size, 0);
  return { live, used: live.reduce((n, b) => n + nbytes[b], 0), reserved, largest };
}

/** Placements of the graph that a call runs, those for its sizes; the latest is last. */
function placementsOf(placements, model, call) {
  const graph = model.calls.graph[call];
  const key = model.unit(call)?.key.join();
  return placements.filter((p) => p.graph === graph && (key ?? p.key.join()) === p.key.join());
}

/**
 * The instant of a placement that goes with a position of a call. An arena's placement has the
 * events of the observed program; a recording has its own, which are matched by the line of
 * generated code.
 */
function instantOf({ node, lines }, model, call, position) {
  const unit = model.unit(call);
  if (!unit || model.isBetween(call, position)) return lines.length;
  if (node === null && lines.length === unit.line.length) return position;
  const line = position ? unit.line[position - 1] : 0;
  let same = 0;
  for (let i = position - 1; i >= 0 && unit.line[i] === line; i--) same++;
  // Events without a line come before the code (buffers of inputs) and after it (workspaces).
  const code = lines.findLastIndex((l) => l > 0) + 1;
  let at = 0;
  for (let i = 0; i < code; i++) {
    if (lines[i] < line || (lines[i] === 0 && at === i)) at = i + 1;
    else if (lines[i] === line && same-- > 0) at = i + 1;
  }
  return at;
}

// The address map: what lies where in the memory of replays, from the first instant to the last.

const MAP_HEIGHT = 360;
const MAP = { left: 70, right: 14, top: 8, bottom: 22 };
const SEGMENT_GAP = 10;

function addresses(state, root) {
  const { payload } = state;
  const { placements } = payload;
  const choice = el(
    "select",
    { "aria-label": "Recording or plan", on: { change: update } },
    el("option", { value: "" }, "of the chosen call"),
    placements.map((p, i) => el("option", { value: i }, p.name)),
  );
  const title = el("p", { id: "address-title" });
  const drawing = new Canvas("addresses", "Address map");
  const canvas = drawing.node;
  const cursor = el("div.cursor");
  const picture = el("div.address-picture", {}, canvas, cursor);
  const rows = el("div");
  fill(root, el("label.choice", {}, "Show the memory ", choice), title, picture, rows);
  let shown = null;
  let instant = 0;
  let reserved = 0;
  let boxes = [];
  const refresh = drawn(picture, paint);
  pointed(canvas, blockAt, hover, pick);

  function update() {
    const { model, call, position } = state;
    const own = placementsOf(placements, model, call);
    const any = choice.value === "";
    shown = any ? (own.at(-1) ?? another(model, call)) : placements[Number(choice.value)];
    const last = shown.lines.length;
    const follows = own.includes(shown);
    instant = follows ? instantOf(shown, model, call, position) : last;
    const now = blocksAt(shown, instant);
    reserved = now.reserved;
    const whose = shown.node === null ? "its scratch memory has" : "the pool had then";
    fill(
      title,
      any && !own.length && el("span.warn", {}, `${whyNot(payload, model, call)} Shown instead: `),
      el("strong.num", { title: exactBytes(now.used), data: { bytes: now.used } }, bytes(now.used)),
      ` in ${count(now.live.length)} blocks of ${bytes(reserved)} that ${whose}; `,
      `largest free piece ${bytes(now.largest)} · ${shown.name}, `,
      follows ? `instant ${count(instant)} of ${count(last)}` : "at its end",
    );
    const label = `Address map of ${shown.name}; the table below has what is there at the chosen instant`;
    canvas.setAttribute("aria-label", label);
    list(now);
    refresh();
  }

  /** For a call without one: the latest of its graph for other sizes, or else of all. */
  function another(model, call) {
    const graph = model.calls.graph[call];
    return placements.findLast((p) => p.graph === graph) ?? placements.at(-1);
  }

  function list({ live, used }) {
    const { address, nbytes } = shown.blocks;
    const template = payload.templates.addresses;
    const found = live.map((b) => {
      const d = describe(b);
      const where = [d.category, d.module, d.node ?? d.outside, d.location];
      return [address[b], nbytes[b], nameOf(b), ...where];
    });
    const foot = live.length ? [["", used, "total"]] : [];
    const columns = template.columns.map((c) => ({ ...c, relative: shown.node === null }));
    const title = "Blocks at this instant, by address";
    const onPick = (_, i) => pick(live[i]);
    fill(rows, table({ ...template, columns }, { rows: found, foot, limit: 8, title, onPick }));
  }

  function nameOf(b) {
    const { owner, node } = shown.blocks;
    const name = owner[b] ?? "scratch memory of a kernel";
    return node[b] === null ? name : `${name}, output of recording #${node[b]}`;
  }

  function describe(b) {
    const { site, nbytes, owner } = shown.blocks;
    return state.model.describeSite(site[b], nbytes[b], owner[b], "call");
  }

  function pick(b) {
    state.showDetail([], nameOf(b), [describe(b)]);
  }

  // ---- the picture

  function paint() {
    if (!shown) return;
    const { address, nbytes, begin, end, site } = shown.blocks;
    const width = picture.clientWidth - MAP.left - MAP.right;
    const step = width / (shown.lines.length + 1);
    const used = shown.segments.filter(([, , n]) => n > 0);
    // By the square root: what a small segment holds can be seen beside a large one too.
    const total = used.reduce((sum, [, , n]) => sum + Math.sqrt(n), 0) || 1;
    const room = MAP_HEIGHT - MAP.top - MAP.bottom - SEGMENT_GAP * (used.length - 1);
    const g = drawing.begin(picture.clientWidth, MAP_HEIGHT);
    let bottom = MAP_HEIGHT - MAP.bottom;
    boxes = [];
    for (const [start, size, n] of used) {
      const height = (room * Math.sqrt(n)) / total;
      const scale = height / n;
      g.fillStyle = color("--panel");
      g.fillRect(MAP.left, bottom - height, width, height);
      g.fillStyle = color("--text-2");
      g.textAlign = "right";
      const mark = byteStep(n, Math.max(1, Math.floor(height / 40)));
      for (let v = 0; v <= n; v += mark) {
        g.fillText(v === 0 ? "0" : bytes(v), MAP.left - 6, bottom - v * scale);
      }
      address.forEach((at, b) => {
        if (at < start || at >= start + size) return;
        boxes.push({
          b,
          x: MAP.left + begin[b] * step,
          y: bottom - (at - start + nbytes[b]) * scale,
          width: Math.max(1, (end[b] - begin[b]) * step),
          height: Math.max(1, nbytes[b] * scale),
        });
      });
      bottom -= height + SEGMENT_GAP;
    }
    g.textAlign = "left";
    for (const { b, x, y, width, height } of boxes) {
      const fillColor = categoryColor(cellAt(payload.sites.category, site[b]));
      g.fillStyle = fillColor;
      g.fillRect(x, y, width, height);
      if (width > 4 && height > 3) {
        g.strokeStyle = color("--page");
        g.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
      }
      // Whole labels only: a number that is cut off is a wrong one.
      const label = [`${nameOf(b)}  ${bytes(nbytes[b])}`, nameOf(b)].find(
        (text) => height > 14 && width > 30 && g.measureText(text).width < width - 8,
      );
      g.fillStyle = textOn(fillColor);
      if (label) g.fillText(label, x + 5, y + Math.min(height / 2, 10));
    }
    g.fillStyle = color("--text-2");
    g.textBaseline = "alphabetic";
    g.fillText("instant 0", MAP.left, MAP_HEIGHT - 6);
    g.textAlign = "right";
    g.fillText(`instant ${count(shown.lines.length)}`, MAP.left + width, MAP_HEIGHT - 6);
    cursor.style.left = `${MAP.left + (instant + 0.5) * step}px`;
  }

  function blockAt(x, y) {
    const inside = (r) => x >= r.x && x <= r.x + r.width && y >= r.y && y <= r.y + r.height;
    return boxes.findLast(inside)?.b;
  }

  function hover(b, event) {
    const { nbytes, address, begin, end } = shown.blocks;
    const d = describe(b);
    const facts = [
      ["bytes", bytes(nbytes[b])],
      ["of the pool", share(nbytes[b], reserved)],
      ["address", formatAddress(address[b], shown.node === null)],
      ["instants", `${count(begin[b])} to ${count(end[b] - 1)}`],
      ["category", words(d.category), categoryColor(d.category)],
      ["module", d.module],
    ];
    showTooltip(event, nameOf(b), facts, d.location, d.code);
  }

  state.on("select", update);
  state.on("device", () => (choice.value = ""));
}

function whyNot(payload, model, call) {
  const { label } = model.graph(call);
  const why = payload.no_addresses[label];
  if (why) return `${label} has no fixed addresses: ${why}.`;
  const reason = model.unit(call)
    ? " for the sizes of this call."
    : ": this call was not observed.";
  return `${label} has no fixed addresses${reason}`;
}
