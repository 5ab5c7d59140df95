// Which placement of the payload a call's replay has, and what is where at an instant of it.
(function (memprof) {
  "use strict";

  /** The blocks that are there at an instant, by address; what they leave free. */
  function use({ segments, blocks }, instant) {
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

  memprof.placement = { use, placementsOf, instantOf };
})((globalThis.memprof ??= {}));
