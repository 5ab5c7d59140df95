// Elements from data. Text of a profile goes into text nodes and attributes only:
// nothing here or in any other asset writes markup from strings.
(function (memprof) {
  "use strict";

  /**
   * An element.
   *
   * @param {string} tag e.g. "div", "td.num" (classes after dots)
   * @param {object} [properties] attributes; `on: {click: f}` listens, `style: {}` sets
   *   single style properties, `data: {}` data attributes; null and false are left out
   * @param {...(Node|string|number|Array|null)} children strings become text nodes
   */
  function el(tag, properties, ...children) {
    const [name, ...classes] = tag.split(".");
    const node = document.createElement(name);
    if (classes.length) node.className = classes.join(" ");
    for (const [key, value] of Object.entries(properties ?? {})) set(node, key, value);
    append(node, children);
    return node;
  }

  function set(node, key, value) {
    if (value === null || value === undefined || value === false) return;
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (key === "style") {
      for (const [property, v] of Object.entries(value)) node.style.setProperty(property, v);
    } else if (key === "data") {
      Object.assign(node.dataset, value);
    } else if (/^on/i.test(key) || key === "innerHTML" || key === "srcdoc") {
      throw new Error(`el() does not set ${key}`);
    } else {
      node.setAttribute(key, value === true ? "" : String(value));
    }
  }

  function append(node, children) {
    for (const child of children) {
      if (child === null || child === undefined || child === false) continue;
      if (Array.isArray(child)) append(node, child);
      else node.append(child instanceof Node ? child : String(child));
    }
  }

  /** Replaces what is in `node`. */
  function fill(node, ...children) {
    node.replaceChildren();
    append(node, children);
    return node;
  }

  /** Says `text` to screen readers, politely. */
  function announce(text) {
    document.getElementById("announcer").textContent = text;
  }

  /** Calls `f` once a frame at most, with the latest arguments. */
  function oncePerFrame(f) {
    let latest = null;
    return (...args) => {
      if (latest === null) {
        requestAnimationFrame(() => {
          const now = latest;
          latest = null;
          f(...now);
        });
      }
      latest = args;
    };
  }

  /** A square of a CSS colour, before the words that it stands for. */
  function swatch(color) {
    return el("i.swatch", { style: { "--swatch": color } });
  }

  /** What is known of something: [label, value, colour of a swatch] rows, without empty ones. */
  function facts(rows) {
    const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
    return el(
      "dl.facts",
      {},
      known.map(([label, value, color]) => [
        el("dt", {}, color && swatch(color), label),
        el("dd.num", {}, value),
      ]),
    );
  }

  /** A name of a profile as people read it. */
  function words(name) {
    return name.replaceAll("_", " ");
  }

  /** Does what `moves` has for a key, unless it is pressed with another one. */
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

  /** A button; `title` says what it does where its label is a sign. */
  function button(label, press, title = null, tag = "button") {
    return el(tag, { type: "button", title, "aria-label": title, on: { click: press } }, label);
  }

  memprof.dom = { el, fill, announce, oncePerFrame, swatch, facts, words, onKey, help, button };
})((globalThis.memprof ??= {}));
