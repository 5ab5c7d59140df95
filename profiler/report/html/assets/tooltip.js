// One tooltip a page, filled with text nodes, kept inside the window.
(function (memprof) {
  "use strict";

  const { el, fill, facts } = memprof.dom;
  // The same facts are in the tables, so screen readers need not hear them on every move.
  const box = document.getElementById("tooltip");

  /**
   * Shows the tooltip beside the pointer.
   *
   * @param {MouseEvent} event
   * @param {string} title
   * @param {Array<[string, string, string?]>} rows label, value, and the CSS colour of a swatch
   * @param {string} [note] in smaller type below
   * @param {string} [code] a source line, in monospace
   */
  function show({ clientX: x, clientY: y }, title, rows, note, code) {
    fill(
      box,
      el("strong.tooltip-title", {}, title),
      code && el("code.tooltip-code", {}, code),
      facts(rows),
      note && el("div.dim", {}, note),
    );
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const room = 8;
    const right = x + 14 + width + room <= innerWidth;
    const left = right ? x + 14 : Math.max(room, x - 14 - width);
    const top = Math.min(Math.max(room, y + 14), Math.max(room, innerHeight - height - room));
    box.style.left = `${Math.min(left, Math.max(room, innerWidth - width - room))}px`;
    box.style.top = `${top}px`;
  }

  function hide() {
    box.hidden = true;
  }

  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true, capture: true });

  memprof.tooltip = { show, hide };
})((globalThis.memprof ??= {}));
