// The parts of the report that do not depend on the chosen instant.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const { bytes, exactBytes, ns, share, count } = memprof.format;
  const { table, bar, bytesCell } = memprof.table;

  const words = (kind) => kind.replaceAll("_", " ");

  /** Versions, machine, and the numbers that matter most. */
  function header(state, root) {
    const { payload } = state;
    const h = payload.header;
    const m = h.machine;
    const machine = [
      m.system,
      m.cpu,
      m.cores && `${m.cores} cores`,
      m.memory_bytes && `${bytes(m.memory_bytes)} memory`,
      ...m.accelerators,
    ];
    const p = h.process;
    const options = Object.entries(h.options).map(([k, v]) => `${k}=${v}`);
    const facts = el("dl.kpis");
    fill(
      root,
      el(
        "p.meta",
        {},
        [
          `memprof ${h.memprof} · torch ${h.torch} · Python ${h.python}`,
          machine.filter(Boolean).join(" · "),
          p && p.world_size > 1
            ? `rank ${p.rank} of ${p.world_size} (local rank ${p.local_rank}, host ${p.host}, process ${p.pid})`
            : "",
          h.created_ns
            ? new Date(h.created_ns / 1e6).toISOString().replace("T", " ").slice(0, 19) + " UTC"
            : "",
          options.length ? `options: ${options.join(", ")}` : "",
        ]
          .filter(Boolean)
          .map((line) => el("span", {}, line)),
      ),
      !h.complete &&
        el(
          "p.notice",
          {},
          "Incomplete: the process was killed or still runs. This is what it had written.",
        ),
      h.left_out.length > 0 &&
        el(
          "div.notice",
          { id: "left-out" },
          "Left out, since the file is damaged or contradicts itself:",
          el(
            "ul",
            {},
            h.left_out.map((text) => el("li", {}, text)),
          ),
        ),
      outOfMemory(state),
      facts,
    );
    state.onDevice(() => {
      const { model } = state;
      const peak = model.device.peak;
      const kpi = (label, value, note, title) =>
        el(
          "div.kpi",
          { title },
          el("dt", {}, label),
          el("dd", {}, el("strong.num", {}, value), note && el("span", {}, note)),
        );
      if (!peak) {
        return fill(facts, kpi("Peak", "-", "no call of a compiled graph was recorded"));
      }
      const [call, instant, most] = peak;
      const live = model.live(call, instant);
      const lines = model.breakdown(live, "line");
      const largest = model.breakdown(live, "category").parts[0];
      fill(
        facts,
        kpi(
          `Peak on ${model.name}`,
          bytes(most),
          `in ${state.nameOf(call, instant)}`,
          exactBytes(most),
        ),
        kpi(
          "Most of it",
          largest ? words(largest.key) : "unknown",
          largest && `${bytes(largest.nbytes)}, ${share(largest.nbytes, most)}`,
        ),
        kpi(
          "Unattributed at the peak",
          bytes(lines.unattributed),
          `${share(lines.unattributed, most)} has no source line`,
          exactBytes(lines.unattributed),
        ),
        kpi(
          "Compiled",
          `${count(h.graphs)} graphs`,
          `${count(h.calls)} calls in ${ns(h.span_ns)}` +
            (h.dropped_calls
              ? `; ${count(h.dropped_calls)} earlier ones are no longer in the log`
              : ""),
        ),
        h.unobserved_calls
          ? kpi(
              "Not observed",
              `${count(h.unobserved_calls)} calls`,
              "what these allocate is not counted; see Graphs",
            )
          : null,
      );
    });
  }

  /** Allocations that failed, whether or not the program caught the error; null if none did. */
  function outOfMemory(state) {
    const failed = state.payload.out_of_memory;
    if (!failed.length) return null;
    const times = failed.reduce((n, e) => n + e.count, 0);
    return el(
      "div.notice.error",
      { id: "out-of-memory" },
      el("strong", {}, `Out of memory: ${count(times)} ${times === 1 ? "time" : "times"}`),
      el(
        "ul",
        {},
        failed.slice(0, 50).map((e) => {
          const [file, line] = state.model.frame(e.frame);
          const said = [
            e.count > 1 ? `${count(e.count)} × ${e.what}` : e.what,
            e.module === "" ? "(root)" : e.module,
            file && `${file}:${line}`,
            e.device && (e.live === null ? e.device : `${e.device}, ${bytes(e.live)} live`),
            e.time_ns !== null &&
              new Date(e.time_ns / 1e6).toISOString().replace("T", " ").slice(0, 19) + " UTC",
          ];
          return el(
            "li",
            {},
            `${said.filter(Boolean).join(" · ")} (${e.source})${e.text ? `: ${e.text}` : ""}`,
          );
        }),
      ),
    );
  }

  function place(state, row) {
    const [file, line, , code] = state.model.frame(row.frame);
    return [
      el("span.code", {}, row.node ?? `(${row.op ?? "unknown"})`),
      code && el("div.code", {}, code),
      el(
        "div.dim.code",
        {},
        [row.graph, row.module === null ? null : row.module || "(root)", file && `${file}:${line}`]
          .filter(Boolean)
          .join(" · "),
      ),
    ];
  }

  /** Activations that forwards leave for their backwards. */
  function saved(state, root) {
    state.onDevice(() => {
      const rows = state.model.device.saved;
      const all = rows.reduce((n, r) => n + r.nbytes, 0);
      const cost = rows.reduce((n, r) => n + r.cost, 0);
      fill(
        root,
        rows.length > 0 &&
          el(
            "p.help",
            {},
            `${bytes(all)} are left for the backwards by one call of each forward. Large memory held long is what recomputing or offloading it saves most on.`,
          ),
        table({
          caption: "Saved activations by bytes × calls until the backward",
          quietCaption: true,
          rows,
          empty:
            "No forward with a backward was observed, so nothing is saved from one to the other.",
          columns: [
            {
              label: "Bytes",
              number: true,
              value: (r) => r.nbytes,
              cell: (r) => bytesCell(r.nbytes),
            },
            {
              label: "Calls until used",
              number: true,
              value: (r) => r.lifetime,
              cell: (r) => (r.lifetime === null ? "-" : String(r.lifetime)),
              title: "Compiled calls from the forward to its backward, median; 1 is the very next",
            },
            {
              label: "Bytes × calls",
              number: true,
              value: (r) => r.cost,
              cell: (r) => bar(r.cost, cost),
              title: "Share of all bytes × calls",
            },
            {
              label: "FX node, source line",
              wide: true,
              value: (r) => r.node ?? "",
              cell: (r) => place(state, r),
            },
          ],
          foot: rows.length ? [[bytesCell(all), "", "", "total"]] : [],
        }),
      );
    });
  }

  /** One row a compiled graph. */
  function graphs(state, root) {
    const unobserved = new Map(state.payload.unobserved.map((u) => [u.graph, u.calls]));
    const some = (r) =>
      unobserved.get(r.id) < r.calls
        ? `${count(unobserved.get(r.id))} of ${count(r.calls)} calls not observed`
        : "not observed";
    state.onDevice(() => {
      const rows = [...state.model.device.table].sort(
        (a, b) => (b.peak ?? -1) - (a.peak ?? -1) || a.id - b.id,
      );
      const amount = (key, label, title) => ({
        label,
        title,
        number: true,
        value: (r) => r[key],
        cell: (r) => bytesCell(r[key]),
      });
      fill(
        root,
        table({
          fit: true,
          caption: "Compiled graphs; bytes of one call of the most called program",
          quietCaption: true,
          rows,
          empty: "No graph was compiled while the profile was taken.",
          columns: [
            {
              label: "Graph",
              wide: true,
              value: (r) => r.label,
              cell: (r) => [
                el("span.code", {}, r.label),
                r.unobserved && el("div.warn", {}, `${some(r)}: ${r.unobserved}`),
              ],
            },
            { label: "Calls", number: true, value: (r) => r.calls, cell: (r) => count(r.calls) },
            {
              label: "Median",
              number: true,
              value: (r) => r.median_ns,
              cell: (r) => ns(r.median_ns),
              title: "Duration of a call on the host",
            },
            amount("allocated", "Allocated", "All allocations of a call added up"),
            amount("peak", "Peak", "Most bytes live inside a call, its inputs included"),
            amount("saved", "Saved", "Left for the backward"),
            {
              label: "Programs",
              number: true,
              value: (r) => r.programs,
              cell: (r) => count(r.programs),
              title: "One for each combination of sizes",
            },
          ],
        }),
      );
    });
  }

  /** Everything memprof did and declined. */
  function ledger(state, root) {
    const { payload } = state;
    const l = payload.ledger;
    const text = (i) => payload.strings[i];
    const all = l.kind.map((kind, i) => ({
      kind: text(kind),
      graph: text(l.graph[i]),
      reason: text(l.reason[i]),
      count: l.count[i],
      time: l.time_ms[i],
    }));
    // The day, where it is not always the same.
    const days = new Set(all.map((e) => Math.floor(e.time / 86_400_000)));
    const clock = (time) =>
      new Date(time).toISOString().replace("T", " ").slice(days.size > 1 ? 0 : 11, 23);
    const kinds = new Map();
    for (const e of all) kinds.set(e.kind, (kinds.get(e.kind) ?? 0) + e.count);
    const holder = el("div");
    const choose = memprof.toggles(
      "Entries",
      [
        ["", `All ${count(all.length)}`],
        ...[...kinds].map(([k, n]) => [k, `${words(k)} ${count(n)}`]),
      ],
      draw,
    );
    root.append(choose.element, holder);
    if (l.left_out)
      root.append(
        el(
          "p.dim",
          {},
          `${count(l.left_out)} earlier entries are left out here; memprof ledger prints them.`,
        ),
      );
    draw("");

    function draw(kind) {
      choose.set(kind);
      fill(
        holder,
        table({
          caption: "Ledger, in order of time",
          quietCaption: true,
          rows: all.filter((e) => !kind || e.kind === kind),
          limit: 15,
          empty: "The ledger is empty: nothing was compiled.",
          columns: [
            {
              label: "Time (UTC)",
              value: (e) => e.time,
              cell: (e) => el("span.num", {}, clock(e.time)),
            },
            { label: "What", value: (e) => e.kind, cell: (e) => words(e.kind) },
            {
              label: "Graph",
              value: (e) => e.graph,
              cell: (e) => el("span.code.nowrap", {}, e.graph || "-"),
            },
            { label: "Count", number: true, value: (e) => e.count, cell: (e) => count(e.count) },
            { label: "Why", wide: true, cell: (e) => e.reason },
          ],
        }),
      );
    }
  }

  /** What is not in the numbers above. */
  function notes(state, root) {
    const { payload } = state;
    state.onDevice(() => {
      const c = state.model.device.coverage;
      const missing = Object.entries(c.missing).sort((a, b) => b[1] - a[1]);
      fill(
        root,
        el(
          "ul.notes",
          {},
          c.allocated > 0 &&
            el(
              "li",
              {},
              `Of ${bytes(c.allocated)} that compiled code allocates in one call of each program, ${share(c.to_node, c.allocated)} have an FX node and ${share(c.to_source, c.allocated)} a source line or module.`,
            ),
          missing.map(([reason, n]) => el("li", {}, `${bytes(n)}: ${reason}`)),
          payload.kept_bytes > 0 &&
            el(
              "li",
              {},
              `${bytes(payload.kept_bytes)} that libraries allocated in observed calls and kept (workspaces, packed weights) are not counted.`,
            ),
          payload.without_scratch > 0 &&
            el(
              "li",
              {},
              `Scratch memory inside kernels of ${count(payload.without_scratch)} programs is not counted: another profiler ran when they were observed.`,
            ),
          payload.unobserved.map((u) =>
            el(
              "li",
              {},
              `${count(u.calls)} calls of ${state.model.graphs.get(u.graph).label} were not observed: ${u.reason}.`,
            ),
          ),
          el(
            "li",
            {},
            "Tensors that eager code makes or keeps outside compiled calls are never seen: an eager loss, gradients between a backward and an eager optimizer, outputs that the program keeps. What is live between calls is a lower bound.",
          ),
          el(
            "li",
            {},
            "A program is observed once and stands for all later calls with the same sizes, replays included: their memory is reconstructed, not measured again.",
          ),
        ),
      );
    });
  }

  memprof.sections = { header, saved, graphs, ledger, notes };
})((globalThis.memprof ??= {}));
