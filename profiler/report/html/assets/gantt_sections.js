// Tables below the chart: operations, marks, and what the chart leaves out.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;
  const { format } = memprof;

  /** Of how many invocations a figure is, where that is not all of them. */
  const inSome = (known, count) => (known && known < count ? ` in ${format.count(known)}` : "");

  function sections(model, main) {
    const { payload } = model;
    const { table, bytesCell } = memprof.table;
    if (payload.summary.length) {
      const devices = [...new Set(payload.summary.flatMap((s) => Object.keys(s.devices)))];
      main.append(
        el(
          "section",
          {},
          el("h2", {}, "Operations"),
          table({
            caption: "All invocations of each operation, by total time",
            quietCaption: true,
            rows: [...payload.summary].sort((a, b) => b.total_ns - a.total_ns),
            columns: [
              { label: "Operation", cell: (s) => s.path, value: (s) => s.path, wide: true },
              { label: "Times", cell: (s) => format.count(s.count), value: (s) => s.count, number: true },
              { label: "Total", cell: (s) => format.ns(s.total_ns), value: (s) => s.total_ns, number: true },
              { label: "Mean", cell: (s) => format.ns(s.mean_ns), value: (s) => s.mean_ns, number: true },
              { label: "Longest", cell: (s) => format.ns(s.max_ns), value: (s) => s.max_ns, number: true },
              {
                label: "Tensors, change",
                cell: (s) => [bytesCell(s.tensor_bytes), inSome(s.tensors_known, s.count)],
                value: (s) => s.tensor_bytes ?? -Infinity,
                number: true,
              },
              ...devices.map((device) => ({
                label: `Peak, ${device}`,
                cell: (s) => bytesCell(s.devices[device]?.peak ?? null),
                value: (s) => s.devices[device]?.peak ?? -Infinity,
                number: true,
              })),
            ],
          }),
        ),
      );
    }
    if (payload.marks.length) {
      main.append(
        el(
          "section",
          {},
          el("h2", {}, "Marks"),
          table({
            caption: "What the ledger says, and checkpoints; each at its first time",
            rows: [...payload.marks].sort((a, b) => a.time - b.time),
            columns: [
              { label: "At", cell: (m) => memprof.instant(m.time), value: (m) => m.time, number: true },
              { label: "What", cell: (m) => m.name, value: (m) => m.name },
              { label: "Of", cell: (m) => m.of, value: (m) => m.of },
              { label: "Times", cell: (m) => format.count(m.count), value: (m) => m.count, number: true },
              { label: "Why", cell: (m) => m.text, wide: true },
            ],
          }),
        ),
      );
    }
    if (payload.notes.length) {
      main.append(
        el(
          "section",
          {},
          el("h2", {}, "Left out"),
          el("ul.gantt-notes", {}, payload.notes.map((text) => el("li", {}, text))),
        ),
      );
    }
  }

  memprof.ganttSections = sections;
})((globalThis.memprof ??= {}));
