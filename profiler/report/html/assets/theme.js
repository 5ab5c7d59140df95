// Light and dark: the system's choice until the reader makes one, colours for canvases.
(function (memprof) {
  "use strict";

  const KEY = "memprof-theme";
  const CHOICES = ["auto", "light", "dark"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const listeners = new Set();
  let choice = "auto";
  let probe = null;
  let known = new Map();

  /** Storage may be denied to a page opened from disk. */
  function remembered() {
    try {
      const value = localStorage.getItem(KEY);
      return CHOICES.includes(value) ? value : "auto";
    } catch {
      return "auto";
    }
  }

  function apply(next, store) {
    choice = next;
    document.documentElement.style.colorScheme = next === "auto" ? "" : next;
    if (store) {
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // The choice then holds for this visit.
      }
    }
    const button = document.getElementById("theme");
    if (button) {
      const after = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      button.textContent = `Theme: ${choice}`;
      button.setAttribute("aria-label", `Theme is ${choice}; switch to ${after}`);
    }
    changed();
  }

  function changed() {
    known = new Map();
    for (const listener of listeners) listener();
  }

  /** The colour of a CSS variable now, as canvases take it: color("--accent"). */
  function color(variable) {
    let found = known.get(variable);
    if (found === undefined) {
      if (!probe) {
        probe = memprof.dom.el("span", { hidden: true });
        document.body.append(probe);
      }
      probe.style.color = `var(${variable})`;
      found = getComputedStyle(probe).color;
      known.set(variable, found);
    }
    return found;
  }

  function variable(category) {
    return `--cat-${category.replaceAll("_", "-")}`;
  }

  /** Black or white, whichever has more contrast on an "rgb(…)" colour (WCAG 2.2). */
  function textOn(color) {
    const [r, g, b] = color.match(/[\d.]+/g).map((v) => {
      const c = Number(v) / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000000" : "#ffffff";
  }

  /** Whether the page is dark now. */
  function isDark() {
    return choice === "dark" || (choice === "auto" && dark.matches);
  }

  /** Calls `listener` after every change between light and dark. */
  function onChange(listener) {
    listeners.add(listener);
  }

  function init() {
    apply(remembered(), false);
    dark.addEventListener("change", changed);
    document.getElementById("theme")?.addEventListener("click", () => {
      apply(CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length], true);
    });
  }

  memprof.theme = {
    init,
    color,
    textOn,
    isDark,
    onChange,
    /** The CSS variable of a category's colour; `name` is the value in profiles. */
    variable,
    category: (name) => color(variable(name)),
  };
})((globalThis.memprof ??= {}));
