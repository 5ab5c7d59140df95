// The report: one chosen instant, and the views of it.

const NO_DETAIL = { title: "", items: [], block: null };

/** What is chosen. Events: "select" of an instant, "device", and "detail" of what is live. */
class State {
  constructor(payload) {
    this.payload = payload;
    this.models = payload.devices.map((d) => new DeviceModel(payload, d));
    this.model = this.models[0];
    Object.assign(this, { call: 0, position: 0, live: new Map(), total: 0, detail: NO_DETAIL });
    this._listeners = { select: [], device: [], detail: [] };
    this._changed = oncePerFrame(() => this._selected());
  }

  on(what, f) {
    this._listeners[what].push(f);
  }

  _tell(what) {
    for (const f of this._listeners[what]) f();
  }

  /** Another device; its peak is chosen. */
  setDevice(model) {
    this.model = model;
    this.detail = NO_DETAIL;
    this._tell("device");
    const [call, instant] = model.device.peak ?? [0, 0];
    this.select(call, instant, true);
  }

  /** Chooses a position (see model.js) of a call. */
  select(call, position, now = false) {
    if (!this.model.length) return;
    this.call = Math.max(0, Math.min(this.model.length - 1, call));
    this.position = Math.max(0, Math.min(this.lastPosition(this.call), position));
    if (now) this._selected();
    else this._changed();
  }

  selectPeak() {
    const { peak } = this.model.device;
    if (peak) this.select(peak[0], peak[1]);
  }

  /** The next or previous instant, in this call or the one beside it. */
  move(by) {
    const next = this.position + by;
    const isLast = this.call + 1 >= this.model.length;
    if (next < 0 && this.call > 0) this.select(this.call - 1, Infinity);
    else if (next > this.lastPosition(this.call) && !isLast) this.moveCall(1);
    else this.select(this.call, next);
  }

  moveCall(by) {
    this.select(this.call + by, 0);
  }

  lastPosition(call) {
    return this.model.lastInstant(call) + 1;
  }

  /** Shows what a part of the live set is, or a block of the address map. */
  showDetail(title, items, block = null) {
    this.detail = { title, items, block };
    this._tell("detail");
  }

  nameOf(call, position) {
    const { model } = this;
    const label = model.graph(call).label;
    const which = `call ${count(call + 1)} of ${count(model.length)}, ${label}`;
    if (model.isBetween(call, position)) return `after ${which}`;
    const last = model.lastInstant(call);
    if (!last) return model.unit(call) ? which : `${which} (not observed)`;
    return `${which}, instant ${count(position)} of ${count(last)}`;
  }

  _selected() {
    this.live = this.model.live(this.call, this.position);
    this.total = this.model.bytes(this.call, this.position);
    this._tell("select");
  }
}

/** The line that follows the reader: which instant, how much, how much of it is unexplained. */
function instantBar(state, root) {
  const total = el("strong.num", { id: "instant-bytes" });
  const where = el("span", { id: "instant-name" });
  const event = el("code.instant-event");
  const left = el("span.num", { id: "instant-unattributed" });
  const step = (label, title, press) => button(label, press, title, "button.quiet");
  const steps = [
    step("⇤", "Previous call", () => state.moveCall(-1)),
    step("←", "Previous instant", () => state.move(-1)),
    step("→", "Next instant", () => state.move(1)),
    step("⇥", "Next call", () => state.moveCall(1)),
    step("Peak", "Go to the peak", () => state.selectPeak()),
  ];
  const dot = () => el("span.dim", {}, " · ");
  fill(
    root,
    el("div.instant-buttons", {}, steps),
    el("div.instant-text", {}, total, " live", dot(), where, dot(), left, event),
  );
  const say = oncePerFrame(() => announce(`${total.textContent} live, ${where.textContent}`));
  state.on("select", () => {
    const { model, call, position } = state;
    total.textContent = bytes(state.total);
    total.title = exactBytes(state.total);
    total.dataset.bytes = String(state.total);
    where.textContent = state.nameOf(call, position);
    const b = model.breakdown(state.live, "line");
    left.textContent = `${bytes(b.unattributed)} unattributed (${share(b.unattributed, state.total)})`;
    left.title = `${exactBytes(b.unattributed)} have no known source line`;
    left.dataset.bytes = String(b.unattributed);
    left.classList.toggle("warn", b.unattributed > 0);
    event.textContent = eventText(model, call, position);
    say();
  });
}

function eventText(model, call, position) {
  if (model.isBetween(call, position)) return "between calls: what is known to be kept";
  const unseen = "this call was not observed: only what other calls left behind is known";
  if (!model.unit(call)) return unseen;
  const event = model.eventBefore(call, position);
  if (!event) return "at the entry of the call: its inputs and what other calls left behind";
  const { before, after, line, statement } = event;
  const item = after < 0 ? before : after;
  const done = after < 0 ? "freed" : before < 0 ? "allocated" : "handed over";
  const what = item >= 0 ? model.describe(item) : null;
  const name = what && `${what.owner ?? "scratch memory"}, ${bytes(what.nbytes)}, ${done}`;
  return `${name ?? "memory of another device"} at line ${line}${statement ? `: ${statement}` : ""}`;
}

function devices(state) {
  if (state.models.length < 2) return null;
  const peak = (m) => `${m.name} · peak ${bytes(state.payload.peaks[m.name])}`;
  const choices = state.models.map((m) => [m, peak(m)]);
  const tabs = toggles("Device", choices, (m) => state.setDevice(m));
  state.on("device", () => tabs.set(state.model));
  return el("div.devices", {}, tabs.element);
}

function liveSet(state, root) {
  const map = el("div");
  const rows = el("div.live-rows");
  const more = el("div.detail", { "aria-live": "polite", "aria-label": "Detail" });
  fill(root, el("div.live", {}, el("div", {}, map, more), rows));
  treemap(state, map);
  liveTable(state, rows);
  detail(state, more);
}

/** An interactive view, by the name that sections have for it. */
function drawView(state, name) {
  if (name.startsWith("curve ")) return curve(state.payload.curves[name.slice(6)]);
  const root = el("div");
  ({ timeline, live: liveSet, addresses, gantt })[name](state, root);
  return root;
}

/** Versions and machine, what went wrong, and the numbers that matter most. */
function header(state) {
  const { header: said } = state.payload;
  const figures = el("dl.kpis");
  const warnings = said.notes.filter(([tone]) => tone === "warn");
  const others = said.notes.filter((note) => !warnings.includes(note));
  const meta = others.map(([, text]) => el("span", {}, text));
  const figure = ([label, value, note]) => {
    const shown = el("dd", {}, el("strong.num", {}, value), note && el("span", {}, note));
    return el("div.kpi", {}, el("dt", {}, label), shown);
  };
  state.on("device", () => fill(figures, state.model.device.figures.map(figure)));
  const rest = section({ ...said, notes: warnings });
  return el("div.summary", {}, el("p.meta", {}, meta), rest, figures);
}

/** Position of the profile that the address asks for (`?rank=3`), else of the highest peak. */
function chosenRank(ranks) {
  if (!ranks) return 0;
  const asked = Number(new URLSearchParams(location.search).get("rank") ?? NaN);
  return ranks.shown.includes(asked) ? ranks.shown.indexOf(asked) : ranks.first;
}

function job(ranks, chosen) {
  const { section: said, shown } = ranks;
  const { rows, columns } = said.parts[0].tables[0];
  const who = columns[0].title; // a rank, or a run of no job
  const all = rows.length;
  const left = `The page has the reports of the ${count(shown.length)} ${who}s with the highest peaks.`;
  const pick = {
    limit: 16,
    onPick: ([rank]) => shown.includes(rank) && (location.search = `?rank=${rank}`),
    isPicked: ([rank]) => rank === shown[chosen],
  };
  const [compared, ...rest] = said.parts;
  return el(
    "div.job",
    {},
    el("h2", {}, said.title),
    section({ ...said, parts: [] }),
    section(compared, pick),
    all > shown.length && el("p.help", {}, left),
    section({ ...said, notes: [], parts: rest }),
    el("h2.whose", {}, `${heading(who)} ${shown[chosen]}`),
  );
}

/** A section of the page; what differs between devices is drawn again for each. */
function sectionOf(state, data) {
  const body = el("div");
  const id = `${data.id}-title`;
  const title = el("h2", { id }, data.title);
  const node = el("section", { id: data.id, "aria-labelledby": id }, title, body);
  const show = () => fill(body, section(state.model.device.sections[data.id] ?? data));
  if (state.model.device.sections[data.id]) state.on("device", show);
  else show();
  return node;
}

function drawReport({ ranks, profiles, opens_at: opensAt }) {
  const chosen = chosenRank(ranks);
  const state = new State(profiles[chosen]);
  // For a console, and for tests.
  const used = { DeviceModel, Axis, pixelColumns, liveTree, instantOf, STACK };
  globalThis.memprof = { report: state, ...used, bytes, ns, share, color, categoryColor };
  views.draw = (name) => drawView(state, name);
  const main = document.getElementById("main");
  const bar = el("div.instant", { role: "region", "aria-label": "Chosen instant" });
  // What stands before the first comma names a section well enough for a list.
  const nav = el(
    "nav.contents",
    { "aria-label": "Contents" },
    state.payload.sections.map((s) => el("a", { href: `#${s.id}` }, s.title.split(/[,;]/)[0])),
  );
  const sections = state.payload.sections.map((data) => sectionOf(state, data));
  fill(main, ranks && job(ranks, chosen), header(state), nav, devices(state), sections);
  if (state.model.length) {
    document.getElementById("live-set").before(bar);
    instantBar(state, bar);
  }
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.target.closest?.("input, select")) return;
    onKey(event, { p: () => state.selectPeak() });
  });
  state.setDevice(state.model);
  if (opensAt) document.getElementById(opensAt)?.scrollIntoView();
}

start(drawReport);
