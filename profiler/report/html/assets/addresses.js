// The address map: what lies where in the memory of replays, from the first instant to the last.

const MAP = { left: 70, right: 14, top: 8, bottom: 22 };
const MAP_HEIGHT = 360;
const SEGMENT_GAP = 10;

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

/**
 * The instant of a placement that goes with a position of a call. A recording has events of its
 * own, which are matched by the line of generated code.
 */
function instantOf({ lines }, model, call, position) {
  const unit = model.unit(call);
  if (!unit || model.isBetween(call, position)) return lines.length;
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

function addresses(state, root) {
  const { placements, templates } = state.payload;
  const choice = el(
    "select",
    { "aria-label": "Recording", on: { change: update } },
    el("option", { value: "" }, "of the chosen call"),
    placements.map((p, i) => el("option", { value: i }, p.name)),
  );
  const title = el("p", { id: "address-title" });
  const drawing = canvas("addresses", "Address map");
  const cursor = el("div.cursor");
  const picture = el("div.address-picture", {}, drawing, cursor);
  const rows = el("div");
  fill(root, el("label.choice", {}, "Show the memory ", choice), title, picture, rows);
  let shown = null;
  let instant = 0;
  let reserved = 0;
  let boxes = [];
  const refresh = drawn(picture, paint);
  pointed(drawing, (x, y) => boxAt(boxes, x, y), hover, pick);

  function update() {
    const { model, call, position } = state;
    const graph = model.calls.graph[call];
    const key = model.unit(call)?.key.join();
    const ofGraph = placements.filter((p) => p.graph === graph);
    const own = ofGraph.filter((p) => (key ?? p.key.join()) === p.key.join());
    const any = choice.value === "";
    // The latest; where there is none for the sizes of the call, of its graph, or else of all.
    const latest = own.at(-1) ?? ofGraph.at(-1) ?? placements.at(-1);
    shown = any ? latest : placements[Number(choice.value)];
    const last = shown.lines.length;
    const follows = own.includes(shown);
    instant = follows ? instantOf(shown, model, call, position) : last;
    const now = blocksAt(shown, instant);
    reserved = now.reserved;
    fill(
      title,
      any && !own.length && el("span.warn", {}, `${whyNot(model, call)} Shown instead: `),
      el("strong.num", { title: exactBytes(now.used), data: { bytes: now.used } }, bytes(now.used)),
      ` in ${count(now.live.length)} blocks of ${bytes(reserved)} that the pool had then; `,
      `largest free piece ${bytes(now.largest)} · ${shown.name}, `,
      follows ? `instant ${count(instant)} of ${count(last)}` : "at its end",
    );
    drawing.ariaLabel = `Address map of ${shown.name}; the table below has what is there at the chosen instant`;
    list(now);
    refresh();
  }

  function whyNot(model, call) {
    const { label } = model.graph(call);
    const why = state.payload.no_addresses[label];
    if (why) return `${label} has no fixed addresses: ${why}.`;
    const reason = model.unit(call) ? " for the sizes of this call" : ": it was not observed";
    return `${label} has no fixed addresses${reason}.`;
  }

  function list({ live, used }) {
    const { address, nbytes } = shown.blocks;
    const found = live.map((b) => {
      const d = describe(b);
      const where = [d.category, d.module, d.node ?? d.outside, d.location];
      return [address[b], nbytes[b], nameOf(b), ...where];
    });
    const foot = live.length ? [["", used, "total"]] : [];
    const said = "Blocks at this instant, by address";
    const options = { rows: found, foot, limit: 8, title: said, onPick: (_, i) => pick(live[i]) };
    fill(rows, table(templates.addresses, options));
  }

  function nameOf(b) {
    const { owner, node } = shown.blocks;
    const name = owner[b] ?? "scratch memory of a kernel";
    return node[b] === null ? name : `${name}, output of recording #${node[b]}`;
  }

  function describe(b) {
    const { site, nbytes } = shown.blocks;
    return { ...state.model.site(site[b]), nbytes: nbytes[b], hold: "call" };
  }

  function pick(b) {
    state.showDetail(nameOf(b), [], describe(b));
  }

  // ---- the picture

  function paint() {
    if (!shown) return;
    const { address, nbytes, begin: begins, end, site } = shown.blocks;
    const width = picture.clientWidth - MAP.left - MAP.right;
    const step = width / (shown.lines.length + 1);
    const used = shown.segments.filter(([, , n]) => n > 0);
    // By the square root: what a small segment holds can be seen beside a large one too.
    const total = used.reduce((sum, [, , n]) => sum + Math.sqrt(n), 0) || 1;
    const room = MAP_HEIGHT - MAP.top - MAP.bottom - SEGMENT_GAP * (used.length - 1);
    const c = begin(drawing, picture.clientWidth, MAP_HEIGHT);
    let bottom = MAP_HEIGHT - MAP.bottom;
    boxes = [];
    for (const [start, size, n] of used) {
      const height = (room * Math.sqrt(n)) / total;
      const scale = height / n;
      c.fillStyle = color("--panel");
      c.fillRect(MAP.left, bottom - height, width, height);
      c.fillStyle = color("--text-2");
      c.textAlign = "right";
      const mark = byteStep(n, Math.max(1, Math.floor(height / 40)));
      for (let v = 0; v <= n; v += mark) {
        c.fillText(v === 0 ? "0" : bytes(v), MAP.left - 6, bottom - v * scale);
      }
      address.forEach((at, b) => {
        if (at < start || at >= start + size) return;
        const [x, y] = [MAP.left + begins[b] * step, bottom - (at - start + nbytes[b]) * scale];
        const [long, high] = [(end[b] - begins[b]) * step, nbytes[b] * scale];
        boxes.push([b, [x, y, Math.max(1, long), Math.max(1, high)]]);
      });
      bottom -= height + SEGMENT_GAP;
    }
    c.textAlign = "left";
    for (const [b, [x, y, long, high]] of boxes) {
      const ground = categoryColor(state.model.categoryOf(site[b]));
      c.fillStyle = ground;
      c.fillRect(x, y, long, high);
      if (long > 4 && high > 3) {
        c.strokeStyle = color("--page");
        c.strokeRect(x + 0.5, y + 0.5, long - 1, high - 1);
      }
      if (high <= 14 || long <= 30) continue;
      // Whole labels only: a number that is cut off is a wrong one.
      const labels = [`${nameOf(b)}  ${bytes(nbytes[b])}`, nameOf(b)];
      const label = labels.find((text) => c.measureText(text).width < long - 8) ?? "";
      c.fillStyle = textOn(ground);
      c.fillText(label, x + 5, y + Math.min(high / 2, 10));
    }
    c.fillStyle = color("--text-2");
    c.textBaseline = "alphabetic";
    c.fillText("instant 0", MAP.left, MAP_HEIGHT - 6);
    c.textAlign = "right";
    c.fillText(`instant ${count(shown.lines.length)}`, MAP.left + width, MAP_HEIGHT - 6);
    cursor.style.left = `${MAP.left + (instant + 0.5) * step}px`;
  }

  function hover(b, event) {
    const { nbytes, address, begin: begins, end } = shown.blocks;
    const d = describe(b);
    const known = [
      ["bytes", bytes(nbytes[b])],
      ["of the pool", share(nbytes[b], reserved)],
      ["address", formatAddress(address[b])],
      ["instants", `${count(begins[b])} to ${count(end[b] - 1)}`],
      ...siteFacts(d),
    ];
    showTooltip(event, nameOf(b), known, d.location, d.code);
  }

  state.on("select", update);
  state.on("device", () => (choice.value = ""));
}
