"""Snapshots that torch itself writes: they add up as the allocator does, and viewers show names.

Each program is a process of its own: the allocator's figures are those of the process.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .programs import script

simgpu = pytest.mark.simgpu

_BEGIN = """
import pickle, sys
import torch, memprof
from click.testing import CliRunner
from memprof.cli import main
from memprof.profiler.model import Category
from torch import nn
from torch.cuda import _memory_viz as viz

folder = sys.argv[1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def dump(name):
    \"\"\"The account of a snapshot of now, which has the allocator's own totals.\"\"\"
    path = f"{folder}/{name}.pickle"
    torch.cuda.memory._dump_snapshot(path)
    (account,) = memprof.load(path).profile().accounts
    stats = torch.cuda.memory_stats()
    assert account.reserved == torch.cuda.memory_reserved(), account
    assert account.allocated == torch.cuda.memory_allocated(), account
    assert account.live + account.awaiting == stats["requested_bytes.all.current"], account
    assert account.unexplained == 0
    parts = account.live + account.rounding + account.awaiting + account.free
    assert parts == account.reserved
    return path, account


def command(*args):
    result = CliRunner().invoke(main, list(args))
    assert result.exit_code == 0, result.output
    return result.stdout


def opens(path):
    \"\"\"What torch's own functions print of a snapshot.\"\"\"
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    plain = dict(format_flamegraph=lambda text: text)
    viz.segsum(snapshot), viz.trace(snapshot), viz.segment_plot(snapshot)
    viz.compare([], snapshot["segments"], **plain)
    assert "snapshot.pickle" in viz.trace_plot(snapshot)
    return viz.memory(snapshot, **plain) + viz.segments(snapshot, **plain)
"""


def _run(program: str, folder: Path) -> str:
    return script(folder / "program.py", _BEGIN + program, str(folder))


@simgpu
def test_a_snapshot_of_eager_code_has_the_allocators_totals(tmp_path: Path) -> None:
    program = """
# History off: no frames, and the totals all the same.
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
_, account = dump("off")
assert any("history of the allocator was off" in n for n in account.notes)

torch.cuda.memory._record_memory_history(max_entries=400)
model = Block().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.reset_peak_memory_stats()
out = model(torch.randn(4096, 256, device="cuda"))
out.sum().backward()
side = torch.cuda.Stream()
out.record_stream(side)
del out
path, account = dump("on")
peak = account.peak
assert peak.reserved == torch.cuda.max_memory_reserved(), peak
assert peak.most_allocated == torch.cuda.max_memory_allocated(), peak
assert peak.unexplained == 0
assert len(peak.notes) == 1, peak.notes
assert {p.name for p in account.pools} == {"general"}
lines = {r.frame.function for r in account.rows if r.frame}
assert lines & {"__init__", "<module>", "cuda"}, lines
assert not any(r.frame and r.frame.file.endswith((".S", ".c", ".cpp")) for r in account.rows)

# A request that fails is in the history.
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
(failed,) = dump("oom")[1].failed
assert failed.nbytes == 1 << 45
assert failed.frame.function == "<module>"
"""
    _run(program, tmp_path)


@simgpu
@pytest.mark.parametrize("graphs", [False, True])
def test_an_enriched_snapshot_opens_in_torchs_own_functions_and_names_the_nodes(
    graphs: bool, tmp_path: Path
) -> None:
    program = f"""
torch.cuda.memory._record_memory_history()
model = torch.compile(Block().cuda(), backend="memprof", options={{"graphs": {graphs}}})
with memprof.profile(f"{{folder}}/p.memprof"):
    for _ in range(3):
        model(torch.randn(64, 256, device="cuda")).sum().backward()
    kept = model(torch.randn(64, 256, device="cuda"))
path, plain = dump("s")
named = ["--profile", f"{{folder}}/p.memprof", "-o", f"{{folder}}/o.pickle"]
said = command("export", path, "-f", "memory-viz", *named)
assert "0/0 forward: " in said and "0/0 backward: " in said, said
assert "not known" not in said, said
"""
    if graphs:
        program += """
(account,) = memprof.load(f"{folder}/o.pickle").profile().accounts
assert any(p.name.startswith("private") for p in account.pools)
nodes = {r.nodes for r in account.peak.rows}
"""
    else:
        program += """
(account,) = memprof.load(f"{folder}/o.pickle").profile().accounts
nodes = {r.nodes for r in account.rows}
# What the last forward left for a backward, by node, module and line.
saved = [r for r in account.rows if r.category is Category.ACTIVATION]
assert saved and all(r.modules or r.nodes for r in saved), account.rows
assert sum(r.nbytes for r in saved) == 64 * 1024 * 4, saved
assert {r.frame.function for r in saved} == {"forward"}, saved
(out,) = [r for r in account.rows if r.category is Category.OUTPUT]
assert (out.nbytes, out.modules) == (64 * 256 * 4, "down")
assert out.nodes == "addmm_1 (aten.addmm.default)", out
assert "addmm_1, output, down, 0/0 forward" in opens(f"{folder}/o.pickle")
"""
    program += """
assert any("addmm" in n or "mm" in n for n in nodes), nodes
for name in ("reserved", "allocated", "live", "rounding", "free"):
    assert getattr(account, name) == getattr(plain, name)
opens(f"{folder}/o.pickle")
with open(f"{folder}/o.pickle", "rb") as file:
    events = pickle.load(file)["device_traces"][0]
named = [e for e in events if "0/0 backward" in e.get("user_metadata", "")]
assert named
frames = [f for e in named for f in e["frames"] if f.get("fx_node_name")]
assert all(f["fx_original_trace"] for f in frames if f["fx_node_name"] == "mm")
# Of the bytes that generated code asked for in the history, nearly all have a node.
code = [e for e in events if e["action"] == "alloc" and any(
    f["filename"].endswith(".py") and f["name"].startswith("call") and "/c" in f["filename"]
    for f in e["frames"])]
assert code
nbytes = sum(e["size"] for e in code)
with_node = sum(e["size"] for e in code if any("fx_node_name" in f for f in e["frames"]))
assert with_node >= 0.99 * nbytes, (with_node, nbytes)
"""
    _run(program, tmp_path)
