// From the page's payload to the first drawing.
(function (memprof) {
  "use strict";

  /**
   * The payload: base64 of gzip of JSON. What browsers learned last of all that pages use is the
   * styles' light-dark(); one that cannot read the payload is older than that in any case.
   */
  async function payload() {
    if (typeof DecompressionStream !== "function") {
      throw new Error(
        "this browser cannot decompress the page's data: use one of 2024 or later " +
          "(Chrome 123, Firefox 120, Safari 17.5)",
      );
    }
    const holder = document.getElementById("payload");
    const binary = atob(holder.textContent);
    holder.remove();
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  /**
   * Reads the payload and calls `draw(payload)`, which may be asynchronous. Then the document's
   * element has `data-ready` with the milliseconds since the page began to load.
   */
  async function start(draw) {
    try {
      memprof.theme.init();
      await draw(await payload());
      document.documentElement.dataset.ready = String(Math.round(performance.now()));
    } catch (error) {
      const box = document.getElementById("page-error");
      box.hidden = false;
      box.textContent = `This page could not be drawn: ${error.message ?? error}`;
      throw error;
    }
  }

  memprof.start = start;
})((globalThis.memprof ??= {}));
