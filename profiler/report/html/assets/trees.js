// Trees of graphs: what runs after what, how often it was replayed, what it cost.
(function (memprof) {
  "use strict";

  const { el } = memprof.dom;
  const { bytes, ns, count } = memprof.format;
  const { table, bytesCell } = memprof.table;

  function trees(state, root) {
    const { payload } = state;
    const nodes = payload.trees;
    const pools = Object.entries(payload.pools);
    if (pools.length) {
      root.append(
        el(
          "p.help",
          {},
          "Largest pools: ",
          pools.map(([d, n]) => `${d} ${bytes(n)}`).join(", "),
          nodes.length
            ? ". Marginal is by how much recording a graph made its pool grow; a graph that fits into what others left costs nothing."
            : ". Functions have the scratch memory that their arenas planned; the pool holds blocks for their outputs too.",
        ),
      );
    }
    if (!nodes.length) {
      root.append(el("p.empty", {}, whyNoTrees(payload)));
    } else {
      root.append(
        table({
          fit: true,
          caption: "Recorded graphs, each below the one that runs before it",
          quietCaption: true,
          rows: inTreeOrder(nodes),
          limit: 40,
          columns: [
            {
              label: "Recording",
              wide: true,
              cell: ({ node, depth }) => [
                el(
                  "span.code",
                  { style: { "padding-left": `${depth * 18}px` } },
                  depth ? "└ " : "",
                  `${node.function} `,
                  el("span.dim", {}, `#${node.node}`),
                ),
                el(
                  "div.dim",
                  { style: { "padding-left": `${depth * 18}px` } },
                  [
                    node.device,
                    node.key.length && `sizes ${node.key.join(", ")}`,
                    node.rerecorded && `recorded again: ${node.reason}`,
                    node.evicted && `dropped: ${node.evicted}`,
                  ]
                    .filter(Boolean)
                    .join(" · "),
                ),
              ],
            },
            {
              label: "Replays",
              number: true,
              cell: ({ node }) => count(node.replays),
            },
            { label: "Marginal", number: true, cell: ({ node }) => bytesCell(node.marginal) },
            {
              label: "Recording took",
              number: true,
              cell: ({ node }) => (node.record_ns ? ns(node.record_ns) : "-"),
            },
          ],
        }),
      );
    }
    const reasons = payload.functions.flatMap((f) =>
      f.reasons.map((r) => ({ ...r, function: f.function })),
    );
    if (payload.functions.length) {
      root.append(
        el("h3", {}, "Functions"),
        table({
          fit: true,
          caption: "Functions in trees and arenas",
          quietCaption: true,
          rows: payload.functions,
          columns: [
            {
              label: "Function",
              wide: true,
              value: (f) => f.function,
              cell: (f) => [
                el("span.code", {}, f.function),
                el("div.dim", {}, f.device === "cpu" ? "CPU arena" : f.device),
              ],
            },
            ...[
              ["keys", "Sizes"],
              ["warm_ups", "Warm-ups"],
              ["recordings", "Recorded"],
              ["rerecordings", "Again"],
              ["replays", "Replays"],
              ["skips", "Skips"],
            ].map(([key, label]) => ({
              label,
              number: true,
              value: (f) => f[key],
              cell: (f) => count(f[key]),
            })),
            {
              label: "Pool",
              number: true,
              value: (f) => f.marginal_bytes,
              cell: (f) => bytesCell(f.marginal_bytes),
            },
          ],
        }),
      );
    }
    if (reasons.length) {
      reasons.sort((a, b) => b.count - a.count);
      root.append(
        el("h3", {}, "What did not go the straight way"),
        table({
          caption: "Reasons",
          quietCaption: true,
          rows: reasons,
          columns: [
            { label: "Times", number: true, value: (r) => r.count, cell: (r) => count(r.count) },
            { label: "What", value: (r) => r.kind, cell: (r) => r.kind.replaceAll("_", " ") },
            {
              label: "Why",
              wide: true,
              cell: (r) => [r.reason, el("span.dim.code", {}, ` ${r.function}`)],
            },
          ],
        }),
      );
    }
  }

  function whyNoTrees(payload) {
    const { ledger } = payload;
    const why = new Map();
    ledger.kind.forEach((kind, i) => {
      if (payload.strings[kind] !== "not_graphed") return;
      const reason = payload.strings[ledger.reason[i]];
      why.set(reason, (why.get(reason) ?? 0) + ledger.count[i]);
    });
    const cpu = payload.devices.every((d) => d.device === "cpu");
    const first = cpu
      ? "CUDA graphs run on CUDA devices; in this profile everything ran on the CPU, where graphs may get an arena instead."
      : "No CUDA graph was recorded.";
    const reasons = [...why].sort((a, b) => b[1] - a[1]).slice(0, 3);
    return reasons.length
      ? `${first} Reasons: ${reasons.map(([r, n]) => `${r} (${n} ×)`).join("; ")}.`
      : first;
  }

  function inTreeOrder(nodes) {
    const id = (device, n) => `${device}\n${n}`;
    const known = new Set(nodes.map((n) => id(n.device, n.node)));
    const below = new Map();
    for (const n of nodes) {
      const parent =
        n.parent !== null && n.parent !== n.node && known.has(id(n.device, n.parent))
          ? id(n.device, n.parent)
          : "";
      if (!below.has(parent)) below.set(parent, []);
      below.get(parent).push(n);
    }
    const out = [];
    const done = new Set();
    const walk = (parent, depth) => {
      for (const node of below.get(parent) ?? []) {
        if (done.has(node)) continue;
        done.add(node);
        out.push({ node, depth });
        walk(id(node.device, node.node), depth + 1);
      }
    };
    walk("", 0);
    for (const node of nodes) if (!done.has(node)) out.push({ node, depth: 0 });
    return out;
  }

  memprof.sections.trees = trees;
})((globalThis.memprof ??= {}));
