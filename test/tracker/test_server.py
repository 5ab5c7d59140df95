"""A FastAPI server under load, stopped as servers are."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

from memprof.profiler.file import read_profile
from memprof.profiler.model import LaneKind, RunState, SnapshotKind

from . import processes
from .processes import files, record, wait_until

SERVER = """
import fastapi, uvicorn

model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).eval()
app = fastapi.FastAPI()

def taken():
    # Beside the file, so that the test can count: one line for each snapshot on the disk.
    from memprof.profiler.tracker.journal import Journal
    append = Journal.append
    log = open("taken.txt", "a", buffering=1)
    def told(self, entry):
        append(self, entry)
        if entry.snapshot is not None:
            log.write("taken\\n")
    Journal.append = told
taken()
tracker = memprof.track(interval=0.1)

def forward(size):
    with torch.inference_mode():
        return model(torch.randn(size, 64)).mean().item()

@app.get("/infer/{size}")
async def infer(size: int):
    async with tracker.track_operation("request"):
        with tracker.track_operation("model"):
            mean = await asyncio.to_thread(forward, size)
        return {"mean": mean}

uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error")
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Server:
    """The server in a process of its own, and clients that never stop asking."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.answered = self.failed = 0
        self.process: subprocess.Popen[str] = processes.start(
            "import asyncio\n" + SERVER, folder, PORT=str(self.port)
        )

    async def load(self, stop_with: int) -> None:
        """Eight clients until there is something to tell; then the signal, while they go on
        asking."""
        clients = [asyncio.create_task(self._client(i)) for i in range(8)]
        while self.answered <= 50 or self.taken() < 5:
            await asyncio.sleep(0.05)
        self.process.send_signal(stop_with)
        await asyncio.gather(*clients)

    async def _client(self, i: int) -> None:
        while self.process.poll() is None:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                request = f"GET /infer/{i + 1} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                answer = await reader.read()
                writer.close()
                self.answered += answer.startswith(b"HTTP/1.1 200")
                self.failed += bool(answer) and not answer.startswith(b"HTTP/1.1 200")
            except OSError:
                await asyncio.sleep(0.02)

    def up(self) -> bool:
        """Whether it answers."""
        assert self.process.poll() is None, self.process.communicate()[1]
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def taken(self) -> int:
        """Snapshots that reached the disk."""
        return (self.folder / "taken.txt").read_text().count("taken")


def loaded(folder: Path, stop_with: int) -> Server:
    server = Server(folder)
    try:
        wait_until(server.up)
        asyncio.run(server.load(stop_with))
        server.process.wait()
    finally:
        server.process.kill()
        server.process.communicate()
    return server


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_sigterm_under_load_gives_a_complete_file(tmp_path: Path) -> None:
    server = loaded(tmp_path, signal.SIGTERM)
    # THEN every request was answered properly, and the process ended as a server does
    assert server.answered > 50
    assert server.failed == 0
    assert server.process.returncode == -signal.SIGTERM
    # AND there is one complete file with everything that was taken
    (name,) = files(tmp_path)
    found = record(tmp_path)
    assert name.endswith(".memprof")
    assert (found.metadata.state, found.metadata.reason) == (RunState.SIGNAL, "SIGTERM")
    assert len(found.snapshots) == found.metadata.snapshots_taken == server.taken()
    assert found.snapshots[-1].kind is SnapshotKind.END
    # AND the requests are all in it, with what ran at once side by side
    counts = {found.path(i): s.count for i, s in enumerate(found.operation_summary)}
    assert counts["request"] >= server.answered
    assert counts["request/model"] == counts["request"]
    assert [s.failed for s in found.operation_summary] == [0, 0]
    tasks = [lane for lane in found.metadata.lanes if lane.kind is LaneKind.TASK]
    assert 1 <= len(tasks) <= 16
    assert found.metadata.problems == []


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_sigkill_under_load_loses_one_snapshot_at_most(tmp_path: Path) -> None:
    server = loaded(tmp_path, signal.SIGKILL)
    assert server.answered > 50
    (name,) = files(tmp_path)
    found = read_profile(tmp_path / name).tracker
    assert found is not None
    assert found.metadata.state is RunState.RUNNING
    assert len(found.snapshots) >= server.taken() >= 5
    counts = {found.path(i): s.count for i, s in enumerate(found.operation_summary)}
    assert counts["request"] > 0
