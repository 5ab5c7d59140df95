// What every page has: numbers in words, elements, the theme, the tooltip, and the first drawing.
// The scripts of a page are parts of one function (page.py): each sees what those before it define.

const missing = (value) => value === null || value === undefined || value === "";

// ---- Numbers with three significant digits: the same text as profiler/report/format.py gives

const UNITS = ["KiB", "MiB", "GiB", "TiB"];
const TIMES = Object.entries({ ns: 1, us: 1e3, ms: 1e6, s: 1e9 });

// Ties to the even digit, as Python rounds: 1.125 MiB are "1.12 MiB" everywhere.
function grouped(n, digits) {
  return n.toLocaleString("en-US", {
    roundingMode: "halfEven",
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

function significant(value) {
  const size = Math.abs(value);
  return grouped(value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

function bytes(n) {
  if (missing(n)) return "-";
  if (Math.abs(n) < 1024) return exactBytes(n);
  const found = UNITS.findIndex((_, i) => Math.abs(n) < 999.5 * 1024 ** (i + 1));
  const at = found < 0 ? UNITS.length - 1 : found;
  return `${significant(n / 1024 ** (at + 1))} ${UNITS[at]}`;
}

function exactBytes(n) {
  return `${grouped(n, 0)} B`;
}

function ns(n) {
  if (missing(n)) return "-";
  // From 999.5 on it would be rounded to 1000.
  const [unit, scale] = TIMES.find(([, size]) => Math.abs(n) < 999.5 * size) ?? TIMES.at(-1);
  return `${scale === 1 ? grouped(n, 0) : significant(n / scale)} ${unit}`;
}

/** A time of `n` nanoseconds on an axis that shows `span` of them: neighbours differ. */
function tick(n, span) {
  if (n === 0) return "0";
  const [unit, scale] = TIMES.findLast(([, size]) => Math.abs(n) >= size) ?? TIMES[0];
  const finest = Math.round(Math.log10(scale));
  const needed = Math.ceil(-Math.log10(Math.max(span, 1) / 20 / scale));
  return `${grouped(n / scale, Math.max(0, Math.min(finest, needed)))} ${unit}`;
}

function share(part, whole) {
  if (!whole) return "-";
  const percent = (100 * part) / whole;
  if (part && percent < 0.05) return "<0.1 %";
  if (part !== whole && percent > 99.95) return ">99.9 %";
  return `${grouped(percent, 1)} %`;
}

function count(n) {
  return missing(n) ? "-" : grouped(n, 0);
}

const formatAddress = (n) => `0x${n.toString(16)}`;

const words = (name) => name.replaceAll("_", " ");
const heading = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// ---- Elements. Text of a profile goes into text nodes and attributes only: nothing here or in any
// other asset writes markup from strings.

/**
 * An element, e.g. "td.num" (classes after dots). `on: {click: f}` listens, `style: {}` sets single
 * style properties, `data: {}` data attributes, others are attributes; null and false are left out.
 * Children are nodes, texts, and lists of them.
 */
function el(tag, { on = {}, style, data = {}, ...attributes } = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  listen(node, on);
  for (const [property, value] of Object.entries(style ?? {}))
    node.style.setProperty(property, value);
  Object.assign(node.dataset, data);
  for (const [key, value] of Object.entries(attributes)) {
    if (isThere(value)) node.setAttribute(key, value === true ? "" : value);
  }
  return fill(node, children);
}

const isThere = (value) => value !== null && value !== undefined && value !== false;

/** Listens to events: their names, and what is done. */
function listen(node, events) {
  for (const [event, listener] of Object.entries(events)) node.addEventListener(event, listener);
}

function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter(isThere));
  return node;
}

/** Says `text` to screen readers. */
function announce(text) {
  document.getElementById("announcer").textContent = text;
}

/** Calls `f` once a frame at most. */
function oncePerFrame(f) {
  let waits = false;
  const now = () => {
    waits = false;
    f();
  };
  return () => {
    if (!waits) requestAnimationFrame(now);
    waits = true;
  };
}

/** A square of a CSS colour, before the words that it stands for. */
function swatch(tint) {
  return el("i.swatch", { style: { "--swatch": tint } });
}

/** [label, value, colour of a swatch] rows, without those that have no value. */
function facts(rows) {
  const known = rows.filter(([, value]) => !missing(value));
  const fact = ([label, value, tint]) => [
    el("dt", {}, tint && swatch(tint), label),
    el("dd.num", {}, value),
  ];
  return el("dl.facts", {}, known.map(fact));
}

/** Does what `moves` has for a key, unless Ctrl, Alt or Meta is pressed too. */
function onKey(event, moves) {
  const move = moves[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  move();
}

/** A paragraph with keys in brackets: "[Ctrl] and the wheel". */
function help(id, text) {
  const part = (said, i) => (i % 2 ? el("kbd", {}, said) : said);
  return el("p.help", { id }, text.split(/\[(.+?)\]/).map(part));
}

function button(label, press, title = null, tag = "button") {
  return el(tag, { type: "button", title, "aria-label": title, on: { click: press } }, label);
}

function toggles(label, choices, choose) {
  const buttons = choices.map(([value, text, title]) =>
    el("button", { type: "button", title, on: { click: () => choose(value) } }, text),
  );
  return {
    element: el("div.tabs", { role: "group", "aria-label": label }, buttons),
    set: (value) => choices.forEach(([v], i) => (buttons[i].ariaPressed = v === value)),
  };
}

// ---- Light and dark: the system's choice until the reader makes one, colours for canvases

const THEME = "memprof-theme";
const THEMES = ["auto", "light", "dark"];
const colors = new Map();

/** Storage may be denied to a page opened from disk: a choice then holds for this visit. */
function stored(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}

function setTheme(asked) {
  const theme = THEMES.includes(asked) ? asked : "auto";
  document.documentElement.style.colorScheme = theme === "auto" ? "" : theme;
  const after = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const node = document.getElementById("theme");
  node.textContent = `Theme: ${theme}`;
  node.ariaLabel = `Theme is ${theme}; switch to ${after}`;
  node.onclick = () => {
    stored((storage) => storage.setItem(THEME, after));
    setTheme(after);
  };
  themeChanged();
}

/** Tells the window, as the event "theme", that colours are others now. */
function themeChanged() {
  colors.clear();
  dispatchEvent(new Event("theme"));
}

/** The colour of a CSS variable now, as canvases take it: color("--accent"). */
function color(variable) {
  if (!colors.has(variable)) {
    const probe = document.getElementById("announcer");
    probe.style.color = `var(${variable})`;
    colors.set(variable, getComputedStyle(probe).color);
  }
  return colors.get(variable);
}

// Categories from the bottom of a stack: first what stays for the whole run, so that its level is
// easy to see.
const STACK = (
  "parameter persistent_state optimizer_state constant gradient activation checkpointed_input " +
  "input output autograd_detail temporary unknown"
).split(" ");

/** The CSS variable of a category's colour, and that colour; `name` is the value in profiles. */
const categoryVariable = (name) => `--cat-${name.replaceAll("_", "-")}`;
const categoryColor = (name) => color(categoryVariable(name));

/** Nothing for words that are no category. */
function categorySwatch(name) {
  return STACK.includes(name) ? swatch(`var(${categoryVariable(name)})`) : null;
}

/** Black or white, whichever has more contrast on an "rgb(…)" colour (WCAG 2.2). */
function textOn(ground) {
  const [r, g, b] = ground.match(/[\d.]+/g).map((v) => {
    const c = Number(v) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000000" : "#ffffff";
}

// ---- One tooltip a page, filled with text nodes, kept inside the window. The same facts are in the
// tables, so screen readers need not hear them on every move.

const tooltip = document.getElementById("tooltip");

function showTooltip({ clientX: x, clientY: y }, title, rows, note, code) {
  fill(
    tooltip,
    el("strong.tooltip-title", {}, title),
    code && el("code.tooltip-code", {}, code),
    facts(rows),
    note && el("div.dim", {}, note),
  );
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const within = (at, size, all) => `${Math.max(8, Math.min(at, all - size - 8))}px`;
  const right = x + 14 + width + 8 <= innerWidth;
  tooltip.style.left = within(right ? x + 14 : x - 14 - width, width, innerWidth);
  tooltip.style.top = within(y + 14, height, innerHeight);
}

function hideTooltip() {
  tooltip.hidden = true;
}

addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());
addEventListener("scroll", hideTooltip, { passive: true, capture: true });

// ---- From the page's payload to the first drawing

/** The payload: base64 of gzip of JSON. */
async function readPayload() {
  if (typeof DecompressionStream !== "function") {
    throw new Error(
      "this browser cannot decompress the page's data: use one of 2024 or later " +
        "(Chrome 123, Firefox 120, Safari 17.5)",
    );
  }
  const holder = document.getElementById("payload");
  const packed = Uint8Array.from(atob(holder.textContent), (c) => c.charCodeAt(0));
  holder.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

/** Draws what is not to wait for a frame in which it is seen, for a screenshot waits for none. */
const firstDrawings = [];

/** Draws the payload. Then `data-ready` of the document has the milliseconds since it began to load. */
async function start(draw) {
  try {
    setTheme(stored((storage) => storage.getItem(THEME)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
    draw(await readPayload());
    for (const show of firstDrawings) show();
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  } catch (error) {
    const box = document.getElementById("page-error");
    box.hidden = false;
    box.textContent = `This page could not be drawn: ${error.message ?? error}`;
    throw error;
  }
}
