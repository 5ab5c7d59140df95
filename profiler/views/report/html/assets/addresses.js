// The address map: what lies where in the memory of replays, from the first instant to the last.

/** @type {(n: number) => string} */
const hexadecimal = (n) => `0x${n.toString(16)}`;

/** The largest piece of a pool that blocks, by address, leave free. @type {(placement: Placement, live: Block[]) => number} */
function largestFree({ segments }, live) {
  let largest = 0;
  for (const [start, nbytes] of segments) {
    let free = start;
    for (const { address, nbytes: taken } of live) {
      if (address < start || address >= start + nbytes) continue;
      largest = Math.max(largest, address - free);
      free = address + taken;
    }
    largest = Math.max(largest, start + nbytes - free);
  }
  return largest;
}

/** @type {Draw} */
function addresses(state, root) {
  const { placements, templates, no_addresses: reasons } = state.profile;
  addTemplate(root, "addresses");
  const choice = /** @type {HTMLSelectElement} */ (byId("recording"));
  choice.append(...placements.map((p, i) => el("option", { value: String(i) }, p.name)));
  choice.addEventListener("change", update);
  /** @type {Placement | undefined} */
  let painted;

  /** @type {(block: Block) => Detail} */
  const describe = ({ site, nbytes }) => ({
    ...rowOf(state.profile.sites, site),
    nbytes,
    owner: null,
    hold: placements[0].hold,
  });
  /** @type {(block: Block) => void} */
  const pick = (block) => state.showDetail(block.name, [], describe(block));

  /** Why the chosen call has no addresses of its own. */
  function whyNot() {
    const { label } = state.model.graph(state.call);
    if (reasons[label]) return `${label} has no fixed addresses: ${reasons[label]}. Shown instead: `;
    const reason = state.model.unit(state.call) ? " for the sizes of this call" : ": it was not observed";
    return `${label} has no fixed addresses${reason}. Shown instead: `;
  }

  function update() {
    const { model, call, position } = state;
    const unit = model.unit(call);
    const ofGraph = placements.filter((p) => p.graph === model.graph(call).id);
    const own = ofGraph.filter((p) => !unit || unit.key.join() === p.key.join());
    // The latest; where there is none for the sizes of the call, of its graph, or else of all.
    const latest = own.at(-1) ?? ofGraph.at(-1) ?? placements[placements.length - 1];
    const shown = choice.value ? placements[Number(choice.value)] : latest;
    const follows = own.includes(shown);
    const instant = (follows && shown.instants[position]) || shown.last;
    const live = shown.blocks.filter(({ begin, end }) => begin <= instant && instant < end);
    const used = sum(live.map((block) => block.nbytes));
    const reserved = sum(shown.segments.map(([, nbytes]) => nbytes));
    if (shown !== painted) paint(shown, reserved);
    byId("address-cursor").style.left = `${(100 * (instant + 0.5)) / (shown.last + 1)}%`;
    fill(
      byId("address-title"),
      !choice.value && !own.length && el("span.warn", {}, whyNot()),
      el("strong.num", { title: exactBytes(used), "data-bytes": used }, bytes(used)),
      ` in ${grouped(live.length)} blocks of ${bytes(reserved)} that the pool had then; `,
      `largest free piece ${bytes(largestFree(shown, live))} · ${shown.name}, `,
      follows ? `instant ${grouped(instant)} of ${grouped(shown.last)}` : "at its end",
    );
    /** @type {Cell[][]} */
    const rows = live.map((block) => {
      const { category, module, node, outside, location } = describe(block);
      const below = [category, module, node ?? outside, location];
      return [[block.address, hexadecimal(block.address)], bytesCell(block.nbytes), nameCell(block.name, below)];
    });
    /** @type {Cell[][]} */
    const foot = live.length ? [["", bytesCell(used), "total"]] : [];
    const title = "Blocks at this instant, by address";
    fill(
      byId("address-table"),
      table({ ...templates.addresses, title, rows, foot }, 8, (i) => pick(live[i])),
    );
  }

  /** Segments upwards by address, as high as the root of what they hold; blocks by their instants. */
  function paint(/** @type {Placement} */ { name, segments, blocks, last }, /** @type {number} */ reserved) {
    const percent = (/** @type {number} */ n, /** @type {number} */ whole) => `${(100 * n) / whole}%`;
    const boxes = segments
      .filter(([, , used]) => used)
      .map(([start, nbytes, used]) => {
        const own = blocks.filter(({ address }) => address >= start && address < start + nbytes);
        return el(
          "div.segment",
          { style: { "flex-grow": String(Math.sqrt(used)) } },
          el("i", {}, bytes(used)),
          own.map((b) => {
            const style = {
              left: percent(b.begin, last + 1),
              width: percent(b.end - b.begin, last + 1),
              bottom: percent(b.address - start, used),
              height: percent(b.nbytes, used),
              "--ground": `var(${categoryVariable(describe(b).category)})`,
            };
            const text = tip(b.name, [
              ["bytes", bytes(b.nbytes)],
              ["of the pool", share(b.nbytes, reserved)],
              ["address", hexadecimal(b.address)],
              ["instants", `${grouped(b.begin)} to ${grouped(b.end - 1)}`],
              ...siteFacts(describe(b)),
            ]);
            const parts = [b.name, bytes(b.nbytes)].map((line) => el("span", {}, line));
            return el("div.block", { style, "data-tip": text, click: () => pick(b) }, parts);
          }),
        );
      });
    fill(byId("segments"), boxes);
    byId("address-map").ariaLabel = `Address map of ${name}; the table below has what is there at the instant`;
    byId("address-map").dataset.last = `instant ${grouped(last)}`;
    painted = placements.find((p) => p.blocks === blocks);
  }

  state.on("select", update);
}
