// All that was reserved on each device: what for, and where it was asked for.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;
  const { bytes, count } = memprof.format;
  const { table, bar, bytesCell } = memprof.table;

  function accounts(state, root) {
    const found = state.payload.accounts;
    if (!found.length) return (root.hidden = true);
    for (const account of found) {
      root.append(
        el("h3", {}, `${account.device}: ${bytes(account.reserved)} reserved at the peak`),
        el("p.help", {}, account.help),
        purposes(account),
        blocks(state, account),
      );
    }
  }

  function purposes(account) {
    return table({
      caption: `What is reserved on ${account.device} at the peak`,
      rows: account.parts,
      limit: 20,
      fit: true,
      columns: [
        { label: "Bytes", number: true, value: (p) => p[1], cell: (p) => bytesCell(p[1]) },
        {
          label: "Share",
          number: true,
          cell: (p) => bar(p[1], account.reserved, "var(--accent)"),
        },
        { label: "What for", value: (p) => p[0], cell: (p) => p[0] },
      ],
      foot: [[bytesCell(account.reserved), "", "total reserved"]],
    });
  }

  function blocks(state, account) {
    const [number, left] = account.smaller;
    return table({
      caption: `Live on ${account.device} then`,
      rows: account.rows,
      columns: [
        { label: "Bytes", number: true, value: (r) => r.nbytes, cell: (r) => bytesCell(r.nbytes) },
        { label: "Blocks", number: true, value: (r) => r.count, cell: (r) => count(r.count) },
        { label: "What for", value: (r) => r.what, cell: (r) => r.what },
        {
          label: "Asked for by",
          wide: true,
          cell: (r) => {
            const [file, line, , code] = state.model.frame(r.frame);
            return [
              el("span.code", {}, code || r.code),
              el(
                "div.dim.code",
                {},
                [file && `${file}:${line}`, r.modules, r.nodes].filter(Boolean).join(" · "),
              ),
            ];
          },
        },
      ],
      foot: number ? [[bytesCell(left), count(number), "smaller", ""]] : [],
    });
  }

  Object.assign((memprof.sections ??= {}), { accounts });
})((globalThis.memprof ??= {}));
