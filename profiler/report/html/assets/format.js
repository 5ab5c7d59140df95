// Numbers in words; the same text as profiler/report/format.py gives at the terminal.
(function (memprof) {
  "use strict";

  const UNITS = ["KiB", "MiB", "GiB", "TiB"];
  const TIMES = [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]];

  // Ties to the even digit, as Python rounds: 1.125 MiB are "1.12 MiB" everywhere.
  function grouped(n, digits) {
    return n.toLocaleString("en-US", {
      roundingMode: "halfEven",
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
  }

  function digits(value) {
    const size = Math.abs(value);
    return size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  }

  /** `n` bytes with three significant digits, e.g. "98.3 MiB". */
  function bytes(n) {
    if (n === null || n === undefined) return "-";
    if (Math.abs(n) < 1024) return exactBytes(n);
    const found = UNITS.findIndex((_, i) => Math.abs(n) < 999.5 * 1024 ** (i + 1));
    const at = found < 0 ? UNITS.length - 1 : found;
    const value = n / 1024 ** (at + 1);
    return `${grouped(value, digits(value))} ${UNITS[at]}`;
  }

  /** `n` bytes with all digits, e.g. "1,048,576 B". */
  function exactBytes(n) {
    return `${grouped(n, 0)} B`;
  }

  /** A duration of `n` nanoseconds, e.g. "12.3 ms". */
  function ns(n) {
    if (n === null || n === undefined) return "-";
    // From 999.5 on it would be rounded to 1000.
    const [scale, unit] = TIMES.find(([size]) => Math.abs(n) < 999.5 * size) ?? TIMES.at(-1);
    return `${grouped(n / scale, scale === 1 ? 0 : digits(n / scale))} ${unit}`;
  }

  /** A time of `n` nanoseconds on an axis that shows `span` of them: neighbours differ. */
  function tick(n, span) {
    if (n === 0) return "0";
    const [scale, unit] = TIMES.findLast(([size]) => Math.abs(n) >= size) ?? TIMES[0];
    const finest = Math.round(Math.log10(scale));
    const needed = Math.ceil(-Math.log10(Math.max(span, 1) / 20 / scale));
    return `${grouped(n / scale, Math.max(0, Math.min(finest, needed)))} ${unit}`;
  }

  /** `part` of `whole` in percent; what is not nothing does not show as 0.0 %. */
  function share(part, whole) {
    if (!whole) return "-";
    const percent = (100 * part) / whole;
    if (part && percent < 0.05) return "<0.1 %";
    if (part !== whole && percent > 99.95) return ">99.9 %";
    return `${grouped(percent, 1)} %`;
  }

  /** A whole number with thousands separated. */
  function count(n) {
    return n === null || n === undefined ? "-" : grouped(n, 0);
  }

  /** The day of a time in nanoseconds since 1970, and the time of that day, both in UTC. */
  function day(time) {
    return new Date(time / 1e6).toISOString().slice(0, 10);
  }
  function clock(time) {
    return new Date(time / 1e6).toISOString().slice(11, 23);
  }

  /** An address; in an arena from its beginning. */
  function address(n, relative) {
    return relative ? `+${count(n)}` : `0x${n.toString(16)}`;
  }

  /** A heading. */
  function title(text) {
    return text.charAt(0).toUpperCase() + text.slice(1);
  }

  /** The end of a path, at most `width` characters: the file name says most. */
  function path(text, width) {
    return text.length <= width ? text : `…${text.slice(text.length - width + 1)}`;
  }

  memprof.format = { bytes, exactBytes, ns, tick, share, count, path, title, address, day, clock };
})((globalThis.memprof ??= {}));
