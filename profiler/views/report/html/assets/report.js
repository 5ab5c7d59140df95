// The report: one chosen instant, and the views of it.

/** @type {(profile: Profile) => State} */
function stateOf(profile) {
  const models = profile.devices.map((device) => modelOf(profile, device));
  /** @type {{ event: string, draw: () => void }[]} */
  const drawings = [];
  const changed = (/** @type {string} */ what) => {
    for (const { event, draw } of drawings) if (event === what) draw();
  };
  let isWaiting = false;
  function selected() {
    isWaiting = false;
    state.live = state.model.live(state.call, state.position);
    state.total = state.model.bytes(state.call, state.position);
    changed("select");
  }
  /** @type {State} */
  const state = {
    profile,
    models,
    model: models[0],
    call: 0,
    position: 0,
    live: new Map(),
    total: 0,
    detail: { title: "", items: [] },
    on: (event, draw) => drawings.push({ event, draw }),
    setDevice(model) {
      state.model = model;
      changed("device");
      const [call, instant] = model.device.peak ?? [0, 0];
      state.select(call, instant, true);
    },
    select(call, position, now = false) {
      const { length, last } = state.model;
      if (!length) return;
      state.call = Math.max(0, Math.min(length - 1, call));
      state.position = Math.max(0, Math.min(last(state.call) + 1, position));
      if (now) selected();
      else if (!isWaiting) requestAnimationFrame(selected);
      isWaiting = !now;
    },
    selectPeak() {
      const { peak } = state.model.device;
      if (peak) state.select(peak[0], peak[1]);
    },
    move(by) {
      const next = state.position + by;
      const isOver = next > state.model.last(state.call) + 1;
      if (next < 0 && state.call > 0) state.select(state.call - 1, Number.POSITIVE_INFINITY);
      else if (isOver && state.call + 1 < state.model.length) state.moveCall(1);
      else state.select(state.call, next);
    },
    moveCall: (by) => state.select(state.call + by, 0),
    showDetail(title, items) {
      state.detail = { title, items };
      changed("detail");
    },
    nameOf(call, position) {
      const { model } = state;
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
  state.on("select", () => {
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

/** @type {(payload: Payload) => void} */
function drawReport({ ranks, profiles }) {
  const asked = new URLSearchParams(location.search).get("rank");
  const chosen = ranks ? Math.max(0, asked === null ? ranks.first : ranks.shown.indexOf(Number(asked))) : 0;
  const state = stateOf(profiles[chosen]);
  // For a console, and for tests.
  window.memprof = { report: state, modelOf, axisOf, columnsOf, leavesOf, STACK, bytes, ns, share, color };
  /** @type {Record<string, Draw>} */
  const draws = { timeline, live: liveSet, gantt };
  views.draw = (name, root) =>
    draws[name] ? draws[name](state, root) : curve(state.profile.curves[name.replace("curve ", "")], root);
  fill(byId("main"), ranks && build(ranks.elements), state.profile.elements.map(build));
  const rank = String(ranks?.shown[chosen]);
  document.getElementById("whose")?.append(` ${rank}`);
  for (const link of document.querySelectorAll(".job a")) {
    link.ariaCurrent = String(link.textContent === rank);
  }
  if (state.models.length > 1) {
    const devices = state.models.map(({ device }, i) => [String(i), device.label]);
    radios(byId("devices"), devices, (i) => state.setDevice(state.models[i]));
  }
  state.on("device", () => {
    for (const [id, content] of Object.entries(state.model.device.elements)) {
      const box = document.getElementById(id);
      if (box) fill(box, content.map(build));
    }
  });
  if (state.model.length) instantBar(state, byId("instant"));
  addEventListener("keydown", (event) => {
    if (event.target instanceof Element && event.target.closest("input, select, #gantt")) return;
    onKey(event, { p: () => state.selectPeak() });
  });
  queueMicrotask(() => {
    state.setDevice(state.model);
  });
}

start(drawReport);
