// Light and dark: the system's choice until the reader makes one, colours for canvases.
(function (memprof) {
  "use strict";

  const KEY = "memprof-theme";
  const CHOICES = ["auto", "light", "dark"];
  const listeners = new Set();
  let known = new Map();

  /** Storage may be denied to a page opened from disk: a choice then holds for this visit. */
  function stored(use) {
    try {
      return use(localStorage);
    } catch {
      return null;
    }
  }

  function apply(next) {
    const choice = CHOICES.includes(next) ? next : "auto";
    document.documentElement.style.colorScheme = choice === "auto" ? "" : choice;
    const after = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    const button = document.getElementById("theme");
    button.textContent = `Theme: ${choice}`;
    button.ariaLabel = `Theme is ${choice}; switch to ${after}`;
    button.onclick = () => {
      stored((storage) => storage.setItem(KEY, after));
      apply(after);
    };
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
      const probe = document.getElementById("announcer");
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

  /** Calls `listener` after every change between light and dark. */
  function onChange(listener) {
    listeners.add(listener);
  }

  function init() {
    apply(stored((storage) => storage.getItem(KEY)));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  }

  memprof.theme = {
    init,
    color,
    textOn,
    onChange,
    /** The CSS variable of a category's colour; `name` is the value in profiles. */
    variable,
    category: (name) => color(variable(name)),
  };
})((globalThis.memprof ??= {}));
