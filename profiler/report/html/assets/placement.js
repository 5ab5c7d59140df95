// Which placement a call's replay has, and what is where at an instant of it.
(function (memprof) {
  "use strict";

  /** One placement of the payload. */
  class Placement {
    constructor(payload, index) {
      this.data = payload.placements[index];
      this.index = index;
      this.count = this.data.blocks.address.length;
      this.last = this.data.lines.length;
      this.graph = payload.graphs.find((g) => g.id === this.data.graph);
      this.segments = this._segments();
    }

    get name() {
      const { node, key, pool } = this.data;
      const sizes = key.length ? ` for sizes ${key.join(", ")}` : "";
      return `${this.graph.label}${sizes}, ${node === null ? pool : `recording #${node} on ${pool}`}`;
    }

    /** Segments that hold something, up to the highest byte that is ever used in them. */
    _segments() {
      const { segments, blocks } = this.data;
      return segments.map(([address, nbytes]) => {
        let used = 0;
        for (let b = 0; b < this.count; b++) {
          const offset = blocks.address[b] - address;
          if (offset >= 0 && offset < nbytes) used = Math.max(used, offset + blocks.nbytes[b]);
        }
        return { address, nbytes, used };
      });
    }

    /** Blocks that are there at an instant, by address. */
    liveAt(instant) {
      const { begin, end } = this.data.blocks;
      const out = [];
      for (let b = 0; b < this.count; b++) if (begin[b] <= instant && instant < end[b]) out.push(b);
      return out;
    }

    /** Bytes in blocks, bytes that the pool has, and its largest free piece at an instant. */
    use(instant) {
      const { address, nbytes } = this.data.blocks;
      const live = this.liveAt(instant);
      let largest = 0;
      for (const s of this.segments) {
        let at = s.address;
        for (const b of live) {
          if (address[b] < s.address || address[b] >= s.address + s.nbytes) continue;
          largest = Math.max(largest, address[b] - at);
          at = address[b] + nbytes[b];
        }
        largest = Math.max(largest, s.address + s.nbytes - at);
      }
      return {
        live,
        used: live.reduce((n, b) => n + nbytes[b], 0),
        reserved: this.segments.reduce((n, s) => n + s.nbytes, 0),
        largest,
      };
    }
  }

  /** Placements of the graph that a call runs, those for its sizes; the latest is last. */
  function placementsOf(placements, model, call) {
    const graph = model.calls.graph[call];
    const unit = model.unit(call);
    const key = unit ? unit.key.join() : null;
    return placements.filter(
      (p) => p.data.graph === graph && (key === null || p.data.key.join() === key),
    );
  }

  /**
   * The instant of a placement that goes with a position of a call. An arena's placement has the
   * events of the observed program; a recording has its own, which are matched by the line of
   * generated code.
   */
  function instantOf(placement, model, call, position) {
    const unit = model.unit(call);
    if (!unit || model.isBetween(call, position)) return placement.last;
    const { lines } = placement.data;
    if (placement.data.node === null && lines.length === unit.line.length) return position;
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

  Object.assign(memprof, { Placement, placementsOf, instantOf });
})((globalThis.memprof ??= {}));
