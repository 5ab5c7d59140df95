// The report: one chosen instant, and the views of it.

/** @type {(profile: Profile) => State} */
function stateOf(profile) {
  const model = modelOf(profile);
  /** @type {(() => void)[]} */
  const drawings = [];
  /** @type {State} */
  const state = {
    profile,
    model,
    call: 0,
    position: 0,
    live: new Map(),
    total: 0,
    onSelect: (draw) => drawings.push(draw),
    select(call, position) {
      if (!model.length) return;
      state.call = Math.max(0, Math.min(model.length - 1, call));
      state.position = Math.max(0, Math.min(model.last(state.call) + 1, position));
      state.live = model.live(state.call, state.position);
      state.total = model.bytes(state.call, state.position);
      for (const draw of drawings) draw();
    },
    selectPeak() {
      const [call, instant] = model.peak ?? [0, 0];
      state.select(call, instant);
    },
    move(by) {
      const next = state.position + by;
      const isOver = next > model.last(state.call) + 1;
      if (next < 0 && state.call > 0) state.select(state.call - 1, Number.POSITIVE_INFINITY);
      else if (isOver && state.call + 1 < model.length) state.moveCall(1);
      else state.select(state.call, next);
    },
    moveCall: (by) => state.select(state.call + by, 0),
    nameOf(call, position) {
      const which = `call ${grouped(call + 1)} of ${grouped(model.length)}, ${model.graph(call).label}`;
      const last = model.last(call);
      if (position > last) return `after ${which}`;
      if (last) return `${which}, instant ${grouped(position)} of ${grouped(last)}`;
      return model.unit(call) ? which : `${which} (not observed)`;
    },
  };
  return state;
}

/** The line that follows the reader: which instant, how much, how much of it is unexplained. @type {(state: State, bar: HTMLElement) => void} */
function instantBar(state, bar) {
  addTemplate(bar, "instant", {
    previousCall: () => state.moveCall(-1),
    previous: () => state.move(-1),
    next: () => state.move(1),
    nextCall: () => state.moveCall(1),
    peak: () => state.selectPeak(),
  });
  const put = (/** @type {string} */ id, /** @type {string} */ text, /** @type {number} */ n) =>
    Object.assign(byId(id), { textContent: text, title: exactBytes(n) }).setAttribute("data-bytes", String(n));
  state.onSelect(() => {
    const { model, live, total, call, position } = state;
    const name = state.nameOf(call, position);
    const unknown = sum(model.breakdown(live, "line").map((part) => (part.known ? 0 : part.nbytes)));
    put("instant-bytes", bytes(total), total);
    put("instant-unattributed", `${bytes(unknown)} unattributed (${share(unknown, total)})`, unknown);
    byId("instant-unattributed").classList.toggle("warn", unknown > 0);
    byId("instant-name").textContent = name;
    byId("instant-event").textContent = model.event(call, position);
    byId("announcer").textContent = `${bytes(total)} live, ${name}`;
  });
}

/** @type {State} */
let state;

/** Draws a view that a section names. */
function drawView(/** @type {string} */ name, /** @type {HTMLElement} */ root) {
  /** @type {Record<string, Draw>} */
  const draws = { timeline, live: liveSet, gantt };
  const lines = state.profile.curves[name.replace("curve ", "")];
  if (draws[name]) draws[name](state, root);
  else if (lines) curve(lines, root);
}

/** @type {(payload: Payload) => void} */
function drawReport({ ranks, profile }) {
  state = stateOf(profile);
  // For a console, and for tests.
  window.memprof = { report: state, modelOf, edge, columnsOf, STACK, bytes, ns, share, color };
  fill(byId("main"), ranks && build(ranks), profile.elements.map(build));
  if (state.model.length) instantBar(state, byId("instant"));
  queueMicrotask(state.selectPeak);
}

start();
