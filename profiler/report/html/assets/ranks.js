// Several processes of one job: how they compare, and which one the rest of the page is about.
(function (memprof) {
  "use strict";

  const { el, fill } = memprof.dom;
  const { bytes, ns, count } = memprof.format;
  const { table, bar, bytesCell } = memprof.table;

  /** Position of the profile that the address asks for (`?rank=3`), else of the highest peak. */
  function chosen(ranks) {
    if (!ranks) return 0;
    const asked = Number(new URLSearchParams(location.search).get("rank") ?? NaN);
    if (ranks.shown.includes(asked)) return ranks.shown.indexOf(asked);
    const highest = ranks.rows.reduce((a, b) => (b.peak > a.peak ? b : a));
    return Math.max(0, ranks.shown.indexOf(highest.rank));
  }

  function draw(ranks, current, root) {
    const { rows, imbalance } = ranks;
    const most = Math.max(...rows.map((r) => r.peak));
    const left = rows.length - ranks.shown.length;
    const figure = (i, value) => (i.unit === "bytes" ? bytes(Math.round(value)) : ns(value));
    fill(
      root,
      el("h2", {}, `${count(rows.length)} of ${count(ranks.world_size)} ranks`),
      ...ranks.warnings.map((w) => el("p.notice", {}, w)),
      table({
        caption: "Ranks; choose one to see its report below",
        quietCaption: true,
        rows,
        limit: 16,
        onPick: (r) => {
          if (ranks.shown.includes(r.rank)) location.search = `?rank=${r.rank}`;
        },
        isPicked: (r) => r.rank === ranks.shown[current],
        columns: [
          { label: "Rank", number: true, value: (r) => r.rank, cell: (r) => String(r.rank) },
          { label: "Peak", number: true, value: (r) => r.peak, cell: (r) => bytesCell(r.peak) },
          { label: "Of the highest", number: true, cell: (r) => bar(r.peak, most) },
          { label: "Steps", number: true, value: (r) => r.steps, cell: (r) => count(r.steps) },
          {
            label: "Median step",
            number: true,
            value: (r) => r.step_ns,
            cell: (r) => ns(r.step_ns),
          },
          { label: "Graphs", number: true, value: (r) => r.graphs, cell: (r) => count(r.graphs) },
          { label: "Calls", number: true, value: (r) => r.calls, cell: (r) => count(r.calls) },
          {
            label: "Recompiled",
            number: true,
            value: (r) => r.recompiles,
            cell: (r) => count(r.recompiles),
          },
          { label: "Skips", number: true, value: (r) => r.skips, cell: (r) => count(r.skips) },
          {
            label: "Process",
            wide: true,
            cell: (r) => [
              [r.device, r.host, r.pid && `process ${r.pid}`].filter(Boolean).join(" · "),
              !r.complete && el("span.warn", {}, " incomplete"),
            ],
          },
        ],
      }),
      left > 0 &&
        el(
          "p.help",
          {},
          `The page has the reports of the ${count(ranks.shown.length)} ranks with the highest peaks.`,
        ),
      el("h3", {}, "Imbalance"),
      table({
        fit: true,
        caption: "Imbalance; categories are those of the live set at each rank's peak",
        quietCaption: true,
        rows: imbalance,
        columns: [
          {
            label: "Figure",
            wide: true,
            value: (i) => i.name,
            cell: (i) => i.name.replaceAll("_", " "),
          },
          {
            label: "Lowest",
            number: true,
            cell: (i) => `${figure(i, i.lowest)} (rank ${i.lowest_rank})`,
          },
          { label: "Mean", number: true, cell: (i) => figure(i, i.mean) },
          {
            label: "Highest",
            number: true,
            cell: (i) => `${figure(i, i.highest)} (rank ${i.highest_rank})`,
          },
          {
            label: "Above the mean",
            number: true,
            value: (i) => i.excess,
            cell: (i) => `${(100 * i.excess).toFixed(1)} %`,
          },
        ],
      }),
      el("h2.whose", {}, `Rank ${ranks.shown[current]}`),
    );
  }

  memprof.ranks = { chosen, draw };
})((globalThis.memprof ??= {}));
