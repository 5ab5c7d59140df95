// Numbers in words; the same text as profiler/report/format.py gives at the terminal.
(function (memprof) {
  "use strict";

  const UNITS = ["KiB", "MiB", "GiB", "TiB"];

  function grouped(n, digits) {
    return n.toLocaleString("en-US", {
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
  }

  function digits(value, most) {
    const size = Math.abs(value);
    return size < 9.995 ? 2 : size < 99.95 ? 1 : Math.min(most, 0);
  }

  /** `n` bytes with three significant digits, e.g. "98.3 MiB". */
  function bytes(n) {
    if (n === null || n === undefined) return "-";
    if (Math.abs(n) < 1024) return `${grouped(n, 0)} B`;
    let value = n;
    for (const unit of UNITS) {
      value /= 1024;
      if (Math.abs(value) < 999.5 || unit === "TiB") {
        return `${grouped(value, digits(value, 0))} ${unit}`;
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
    if (Math.abs(n) < 1e3) return `${grouped(n, 0)} ns`;
    for (const [limit, unit] of [
      [1e6, "us"],
      [1e9, "ms"],
    ]) {
      if (Math.abs(n) < limit) {
        const value = n / (limit / 1e3);
        return `${value.toFixed(digits(value, 0))} ${unit}`;
      }
    }
    return `${grouped(n / 1e9, digits(n / 1e9, 0))} s`;
  }

  /** `part` of `whole` in percent; what is not nothing does not show as 0.0 %. */
  function share(part, whole) {
    if (!whole) return "-";
    const percent = (100 * part) / whole;
    if (part && percent < 0.05) return "<0.1 %";
    if (part !== whole && percent > 99.95) return ">99.9 %";
    return `${percent.toFixed(1)} %`;
  }

  /** A whole number with thousands separated. */
  function count(n) {
    return n === null || n === undefined ? "-" : grouped(n, 0);
  }

  /** The end of a path, at most `width` characters: the file name says most. */
  function path(text, width) {
    return text.length <= width ? text : `…${text.slice(text.length - width + 1)}`;
  }

  memprof.format = { bytes, exactBytes, ns, share, count, path };
})((globalThis.memprof ??= {}));
