// Numbers in words; the same text as profiler/report/format.py gives at the terminal.
(function (memprof) {
  "use strict";

  const UNITS = ["KiB", "MiB", "GiB", "TiB"];

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
    if (Math.abs(n) < 1024) return `${grouped(n, 0)} B`;
    let value = n;
    for (const unit of UNITS) {
      value /= 1024;
      if (Math.abs(value) < 999.5 || unit === "TiB") {
        return `${grouped(value, digits(value))} ${unit}`;
      }
    }
    return "";
  }

  /** `n` bytes with all digits, e.g. "1,048,576 B". */
  function exactBytes(n) {
    return `${grouped(n, 0)} B`;
  }

  /** A duration of `n` nanoseconds, e.g. "12.3 ms". */
  function ns(n) {
    if (n === null || n === undefined) return "-";
    // From there on it would be rounded to 1000.
    const most = 0.9995;
    if (Math.abs(n) < most * 1e3) return `${grouped(n, 0)} ns`;
    for (const [limit, unit] of [
      [1e6, "us"],
      [1e9, "ms"],
    ]) {
      if (Math.abs(n) < most * limit) {
        const value = n / (limit / 1e3);
        return `${grouped(value, digits(value))} ${unit}`;
      }
    }
    return `${grouped(n / 1e9, digits(n / 1e9))} s`;
  }

  /** A time of `n` nanoseconds on an axis that shows `span` of them: neighbours differ. */
  function tick(n, span) {
    if (n === 0) return "0";
    const size = Math.abs(n);
    const units = [[1, "ns"], [1e3, "us"], [1e6, "ms"], [1e9, "s"]];
    const [scale, unit] = units.findLast(([least]) => size >= least) ?? units[0];
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

  /** The end of a path, at most `width` characters: the file name says most. */
  function path(text, width) {
    return text.length <= width ? text : `…${text.slice(text.length - width + 1)}`;
  }

  memprof.format = { bytes, exactBytes, ns, tick, share, count, path, address, day, clock };
})((globalThis.memprof ??= {}));
