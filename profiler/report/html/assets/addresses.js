// The address map: what lies where in the memory of replays, from the first instant to the last.
(function (memprof) {
  "use strict";

  const { el, fill, oncePerFrame } = memprof.dom;
  const { bytes, exactBytes, count, share } = memprof.format;
  const { table } = memprof.table;
  const { byteStep } = memprof;
  const HEIGHT = 360;
  const PLOT = { left: 70, right: 14, top: 8, bottom: 22 };
  const GAP = 10;

  function addresses(state, root) {
    const { payload } = state;
    const placements = payload.placements.map((_, i) => new memprof.Placement(payload, i));
    const choice = el(
      "select",
      { "aria-label": "Recording or plan", on: { change: update } },
      el("option", { value: "" }, "of the chosen call"),
      placements.map((p) => el("option", { value: p.index }, p.name)),
    );
    const title = el("p", { id: "address-title" });
    const drawing = new memprof.Canvas("addresses", "Address map");
    const canvas = drawing.node;
    const cursor = el("div.address-cursor");
    const picture = el("div.address-picture", {}, canvas, cursor);
    const rows = el("div");
    fill(
      root,
      el("label.choice", {}, "Show the memory ", choice),
      title,
      picture,
      rows,
    );
    let shown = null;
    let instant = 0;
    let layout = null;
    const refresh = oncePerFrame(paint);
    new ResizeObserver(refresh).observe(picture);
    memprof.theme.onChange(refresh);
    canvas.addEventListener("mousemove", (event) => hover(event));
    canvas.addEventListener("mouseleave", memprof.tooltip.hide);
    canvas.addEventListener("click", (event) => {
      const block = blockAt(event);
      if (block !== null) state.showDetail([], nameOf(block), describe(block));
    });

    function update() {
      const { model, call, position } = state;
      const own = memprof.placementsOf(placements, model, call);
      shown =
        choice.value === ""
          ? (own[own.length - 1] ?? another(model, call))
          : placements[Number(choice.value)];
      const follows = own.includes(shown);
      instant = follows ? memprof.instantOf(shown, model, call, position) : shown.last;
      const use = shown.use(instant);
      fill(
        title,
        own.length || choice.value !== ""
          ? null
          : el("span.warn", {}, `${whyNot(payload, model, call)} Shown instead: `),
        el(
          "strong.num",
          { title: exactBytes(use.used), data: { bytes: use.used } },
          bytes(use.used),
        ),
        ` in ${count(use.live.length)} blocks of ${bytes(use.reserved)} that ${shown.data.node === null ? "its scratch memory has" : "the pool had then"}; `,
        `largest free piece ${bytes(use.largest)} · ${shown.name}, `,
        follows ? `instant ${count(instant)} of ${count(shown.last)}` : "at its end",
      );
      canvas.setAttribute(
        "aria-label",
        `Address map of ${shown.name}; the table below has what is there at the chosen instant`,
      );
      list(use);
      refresh();
    }

    /** For a call without one: the latest of its graph for other sizes, or else of all. */
    function another(model, call) {
      const same = placements.filter((p) => p.data.graph === model.calls.graph[call]);
      return same[same.length - 1] ?? placements[placements.length - 1];
    }

    function list(use) {
      const { blocks } = shown.data;
      const template = payload.templates.addresses;
      const found = use.live.map((b) => {
        const d = describe(b)[0];
        const where = [d.category, d.module === "" ? "(root)" : d.module, d.node ?? d.outside];
        const code = d.location ? [d.location] : [null];
        return [blocks.address[b], blocks.nbytes[b], nameOf(b), ...where, ...code];
      });
      const foot = use.live.length ? [["", use.used, "total"]] : [];
      const columns = template.columns.map((c) => ({ ...c, relative: shown.data.node === null }));
      const pick = (_, i) => state.showDetail([], nameOf(use.live[i]), describe(use.live[i]));
      const title = "Blocks at this instant, by address";
      fill(rows, table({ ...template, columns }, { rows: found, foot, limit: 8, title, onPick: pick }));
    }

    function nameOf(b) {
      const { owner, node } = shown.data.blocks;
      const name = owner[b] ?? "scratch memory of a kernel";
      return node[b] === null ? name : `${name}, output of recording #${node[b]}`;
    }

    function describe(b) {
      const { site, nbytes, owner } = shown.data.blocks;
      return [state.model.describeSite(site[b], nbytes[b], owner[b], "call")];
    }

    function addressText(address) {
      return memprof.format.address(address, shown.data.node === null);
    }

    // ---- the picture

    function lay() {
      const width = picture.clientWidth - PLOT.left - PLOT.right;
      const used = shown.segments.filter((s) => s.used > 0);
      // By the square root: what a small segment holds can be seen beside a large one too.
      const total = used.reduce((n, s) => n + Math.sqrt(s.used), 0) || 1;
      const room = HEIGHT - PLOT.top - PLOT.bottom - GAP * (used.length - 1);
      let bottom = HEIGHT - PLOT.bottom;
      const places = used.map((s) => {
        const height = (room * Math.sqrt(s.used)) / total;
        const place = { ...s, bottom, height, scale: height / s.used };
        bottom -= height + GAP;
        return place;
      });
      return { width, places, step: width / (shown.last + 1) };
    }

    function box(b) {
      const { address, nbytes, begin, end } = shown.data.blocks;
      const s = layout.places.find(
        (p) => address[b] >= p.address && address[b] < p.address + p.nbytes,
      );
      if (!s) return null;
      const top = s.bottom - (address[b] - s.address + nbytes[b]) * s.scale;
      return {
        x: PLOT.left + begin[b] * layout.step,
        y: top,
        width: Math.max(1, (end[b] - begin[b]) * layout.step),
        height: Math.max(1, nbytes[b] * s.scale),
      };
    }

    function paint() {
      if (!shown || !picture.clientWidth) return;
      layout = lay();
      const g = drawing.begin(picture.clientWidth, HEIGHT);
      const { color, category } = memprof.theme;
      for (const s of layout.places) {
        g.fillStyle = color("--panel");
        g.fillRect(PLOT.left, s.bottom - s.height, layout.width, s.height);
        g.fillStyle = color("--text-2");
        g.textAlign = "right";
        const step = byteStep(s.used, Math.max(1, Math.floor(s.height / 40)));
        for (let v = 0; v <= s.used; v += step) {
          g.fillText(v === 0 ? "0" : bytes(v), PLOT.left - 6, s.bottom - v * s.scale);
        }
      }
      const { sites } = state.payload;
      const { site } = shown.data.blocks;
      g.textAlign = "left";
      for (let b = 0; b < shown.count; b++) {
        const r = box(b);
        if (!r) continue;
        const fillColor = category(memprof.cell(sites.category, site[b]));
        g.fillStyle = fillColor;
        g.fillRect(r.x, r.y, r.width, r.height);
        if (r.width > 4 && r.height > 3) {
          g.strokeStyle = color("--page");
          g.lineWidth = 1;
          g.strokeRect(r.x + 0.5, r.y + 0.5, r.width - 1, r.height - 1);
        }
        // Whole labels only: a number that is cut off is a wrong one.
        const label = [`${nameOf(b)}  ${bytes(shown.data.blocks.nbytes[b])}`, nameOf(b)].find(
          (text) => r.height > 14 && r.width > 30 && g.measureText(text).width < r.width - 8,
        );
        if (label) {
          g.fillStyle = memprof.theme.textOn(fillColor);
          g.fillText(label, r.x + 5, r.y + Math.min(r.height / 2, 10));
        }
      }
      g.fillStyle = color("--text-2");
      g.textBaseline = "alphabetic";
      g.fillText("instant 0", PLOT.left, HEIGHT - 6);
      g.textAlign = "right";
      g.fillText(`instant ${count(shown.last)}`, PLOT.left + layout.width, HEIGHT - 6);
      cursor.style.left = `${PLOT.left + (instant + 0.5) * layout.step}px`;
    }

    function blockAt(event) {
      if (!shown || !layout) return null;
      for (let b = shown.count - 1; b >= 0; b--) {
        const r = box(b);
        if (!r) continue;
        const dx = event.offsetX - r.x;
        const dy = event.offsetY - r.y;
        if (dx >= 0 && dx <= r.width && dy >= 0 && dy <= r.height) return b;
      }
      return null;
    }

    function hover(event) {
      const b = blockAt(event);
      if (b === null) return memprof.tooltip.hide();
      const { nbytes, address, begin, end } = shown.data.blocks;
      const d = describe(b)[0];
      memprof.tooltip.show(
        event.clientX,
        event.clientY,
        nameOf(b),
        [
          ["bytes", bytes(nbytes[b])],
          ["of the pool", share(nbytes[b], shown.use(0).reserved)],
          ["address", addressText(address[b])],
          ["instants", `${count(begin[b])} to ${count(end[b] - 1)}`],
          ["category", memprof.dom.words(d.category), memprof.theme.category(d.category)],
          ...(d.module !== null ? [["module", d.module || "(root)"]] : []),
        ],
        d.location ?? undefined,
        d.code ?? undefined,
      );
    }

    state.onSelect(update);
    state.onDevice(() => (choice.value = ""));
  }

  function whyNot(payload, model, call) {
    const { label } = model.graph(call);
    const why = payload.no_addresses[label];
    if (why) return `${label} has no fixed addresses: ${why}.`;
    const reason = model.unit(call) ? " for the sizes of this call." : ": this call was not observed.";
    return `${label} has no fixed addresses${reason}`;
  }

  memprof.addresses = addresses;
})((globalThis.memprof ??= {}));
