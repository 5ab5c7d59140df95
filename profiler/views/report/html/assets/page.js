// What every page has: numbers in words, elements, the theme, the tooltip, and the first drawing.
// The scripts of a page are parts of one function (page.py): each sees what those before it define.
// What they are given and give each other is in ../types.d.ts.

// ---- Numbers with three significant digits: the same text as profiler/views/report/format.py gives

/** @type {[string, number][]} */
const BINARY = ["KiB", "MiB", "GiB", "TiB"].map((unit, i) => [unit, 1024 ** (i + 1)]);
const TIMES = Object.entries({ ns: 1, us: 1e3, ms: 1e6, s: 1e9 });

/** Formats by digits; ties go to the even digit, as Python rounds. */
const formats = Array.from({ length: 10 }, (_, digits) => {
  const range = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat("en-US", { roundingMode: "halfEven", ...range });
});
const grouped = (/** @type {number} */ n, digits = 0) => formats[digits].format(n);

/** In the unit that makes it less than 1000. @type {(n: number, units: [string, number][]) => string} */
function scaled(n, units) {
  const fits = units.findIndex(([, size]) => Math.abs(n) < 999.5 * size);
  const [unit, size] = units[fits < 0 ? units.length - 1 : fits];
  const value = Math.abs(n / size);
  return `${grouped(n / size, size === 1 || value >= 99.95 ? 0 : value < 9.995 ? 2 : 1)} ${unit}`;
}

const exactBytes = (/** @type {number} */ n) => `${grouped(n)} B`;
const bytes = (/** @type {number} */ n) => (Math.abs(n) < 1024 ? exactBytes(n) : scaled(n, BINARY));
const ns = (/** @type {number} */ n) => scaled(n, TIMES);
const words = (/** @type {string} */ name) => name.replaceAll("_", " ");
const sum = (/** @type {number[]} */ values) => values.reduce((a, b) => a + b, 0);

function share(/** @type {number} */ part, /** @type {number} */ whole) {
  if (!whole) return "-";
  const percent = (100 * part) / whole;
  if (part && percent < 0.05) return "<0.1 %";
  return part !== whole && percent > 99.95 ? ">99.9 %" : `${grouped(percent, 1)} %`;
}

// ---- Elements. Text of a profile goes into text nodes and attributes only: nothing here or in any
// other script writes markup from strings.

/**
 * An element, e.g. "td.num" (classes after dots). `style: {}` sets style properties, functions listen
 * to events by their name, others are attributes.
 * @type {(tag: string, props?: Record<string, any>, ...children: Child[]) => HTMLElement}
 */
function el(tag, { style = {}, ...others } = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  node.classList.add(...classes);
  for (const [key, value] of Object.entries(style)) node.style.setProperty(key, value);
  for (const [key, value] of Object.entries(others)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value && key === "class") node.classList.add(...value.split(" "));
    else if (isThere(value)) node.setAttribute(key, value);
  }
  return fill(node, children);
}

const isThere = (/** @type {unknown} */ value) => value !== null && value !== undefined && value !== false;

/** @type {(node: Element, ...children: Child[]) => any} */
function fill(node, ...children) {
  node.replaceChildren(.../** @type {any[]} */ (children.flat(9)).filter(isThere));
  return node;
}

const byId = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** A square of a CSS colour, before its words. */
const swatch = (/** @type {string} */ color) => el("i.swatch", { style: { "--swatch": color } });

/** Puts an element of elements.py into the document. @type {(element: Tree) => Child} */
function build(element) {
  if (!Array.isArray(element)) return element;
  const [tag, attributes, ...children] = element;
  if (tag === "table") return table(attributes);
  if (tag !== "view") return el(tag, attributes, children.map(build));
  const root = el("div");
  queueMicrotask(() => drawView(attributes, root)); // once it is in the document
  return root;
}

/** Radio buttons in a group. @type {(group: HTMLElement, choices: string[][], choose: (value: any) => void) => void} */
function radios(group, choices, choose) {
  const radio = (/** @type {string} */ value, /** @type {boolean} */ checked) =>
    el("input", { type: "radio", name: group.id, value, checked, change: () => choose(value) });
  fill(
    group,
    choices.map(([value, text], i) => el("label", {}, radio(value, i === 0), text)),
  );
}

/** Adds a template of report.html; its buttons do what `actions` has for their `data-do`. @type {(root: HTMLElement, name: string, actions?: Record<string, () => void>) => void} */
function addTemplate(root, name, actions = {}) {
  const template = /** @type {HTMLTemplateElement} */ (byId(`draw-${name}`));
  root.append(template.content.cloneNode(true));
  root.addEventListener("click", (event) => actions[/** @type {any} */ (event.target).dataset.do]?.());
}

// ---- Colours, which change with the theme

// Categories from the bottom of a stack: first what stays for the whole run, so that its level is
// easy to see.
const STACK = (
  "parameter persistent_state optimizer_state constant gradient activation checkpointed_input " +
  "input output autograd_detail temporary unknown"
).split(" ");

/** The CSS variable of a category's colour. */
const categoryVariable = (/** @type {string} */ name) => `--cat-${name.replaceAll("_", "-")}`;
const categorySwatch = (/** @type {string} */ name) => swatch(`var(${categoryVariable(name)})`);

/** A CSS colour now, as canvases take it. */
function computed(/** @type {string} */ css) {
  byId("announcer").style.color = css;
  return getComputedStyle(byId("announcer")).color;
}
const color = (/** @type {string} */ variable) => computed(`var(${variable})`);

const themeChanged = () => dispatchEvent(new Event("theme"));
byId("theme").addEventListener("change", themeChanged); // the style sheet does the rest
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);

// ---- One tooltip a page: what an element has as `data-tip`. The same facts are in the tables, so
// screen readers need not hear them on every move.

const tip = (/** @type {string} */ title, /** @type {Fact[]} */ rows) =>
  [title, ...rows.filter(([, value]) => value).map(([label, value]) => `${label}: ${value}`)].join("\n");

function showTip(/** @type {PointerEvent} */ { target, clientX: x, clientY: y }) {
  const text = target instanceof Element && target.closest("[data-tip]")?.getAttribute("data-tip");
  const tooltip = byId("tooltip");
  tooltip.hidden = !text;
  if (!text) return;
  tooltip.textContent = text;
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.min(x + 14, innerWidth - width - 8)}px`;
  tooltip.style.top = `${Math.min(y + 14, innerHeight - height - 8)}px`;
}
addEventListener("pointermove", showTip);
addEventListener("pointerdown", showTip);
addEventListener("scroll", () => byId("tooltip").setAttribute("hidden", ""), { capture: true });

// ---- From the page's payload to the first drawing

/** Draws the payload, base64 of gzip of JSON. Then `data-ready` has the milliseconds since the page began to load. */
async function start() {
  try {
    const packed = Uint8Array.from(atob(byId("payload").textContent ?? ""), (c) => c.charCodeAt(0));
    byId("payload").remove();
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    drawReport(await new Response(stream).json());
    await new Promise((drawn) => setTimeout(drawn)); // views and charts draw in microtasks
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  } catch (error) {
    byId("page-error").hidden = false;
    byId("page-error").textContent = `This page could not be drawn (it needs a browser of 2024 or later): ${error}`;
    throw error;
  }
}
