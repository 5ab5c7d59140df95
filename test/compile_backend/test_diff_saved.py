"""What is saved for the backward now and not before, between real runs of one program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rendering import render_diff
from torch import Tensor, nn

import memprof
from memprof.cli import main
from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import Profile
from memprof.profiler.views.compare.diff import compare
from memprof.profiler.views.compare.diff_model import SavedKind
from memprof.profiler.views.report.sections.diff import of_diff

pytestmark = pytest.mark.zero_kernels

ROWS, WIDTH = 64, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.up(x)
        return x + self.down(nn.functional.gelu(wide))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def profiled(*, half: bool = False, budget: float = 1.0) -> Profile:
    torch._dynamo.reset()
    model = torch.compile(Net(), backend="memprof")
    less = torch._functorch.config.patch(activation_memory_budget=budget)
    with less, memprof.profile() as session:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = model(torch.ones(ROWS, WIDTH))
            loss.backward()
    return session.profile()


@pytest.fixture(scope="module")
def single() -> Profile:
    return profiled()


def test_another_precision(single: Profile) -> None:
    # GIVEN one program in float32 and in bfloat16 WHEN they are compared
    diff = compare(single, profiled(half=True))
    # THEN what the activation reads is the same value in another type, half as large, of both
    # layers, although nodes have other names
    (wide,) = (c for c in diff.saved if c.op == "addmm" and c.module == "blocks.*.up")
    assert wide.kind is SavedKind.TYPE
    assert wide.types == "float32 → bfloat16"
    assert wide.count == 2
    assert wide.before == 2 * wide.after == 2 * ROWS * 4 * WIDTH * 4
    assert wide.line == "test_diff_saved.py: wide = self.up(x)"
    # and weights are kept in bfloat16 that were none of the graph's before.
    new = [c for c in diff.saved if c.kind is SavedKind.NEW]
    assert "_to_copy" in {c.op for c in new}
    assert all(c.before == 0 < c.after and "bfloat16" in c.types for c in new)


def test_less_budget(single: Profile) -> None:
    diff = compare(single, profiled(budget=0.1))
    gone = [c for c in diff.saved if c.kind is SavedKind.GONE]
    assert ("gelu", "blocks.*") in {(c.op, c.module) for c in gone}
    assert all(c.after == 0 < c.before for c in gone)
    # All of it together is what the quantity has lost.
    (saved,) = (q for q in diff.quantities if q.name == "saved")
    assert sum(c.change for c in diff.saved) == saved.change < 0


def test_another_torch(single: Profile) -> None:
    # GIVEN the same program, whose graph has one more and so other numbers, with other node names
    again = profiled()
    # WHEN nothing is saved otherwise THEN nothing is said
    assert compare(single, again).saved == ()


def test_text_page_and_json_say_the_same(single: Profile, tmp_path: Path) -> None:
    after = profiled(half=True)
    paths = [str(tmp_path / name) for name in ("a.memprof", "b.memprof")]
    for path, profile in zip(paths, (single, after), strict=True):
        write_profile(profile, path)
    diff = compare(single, after)
    said = [s for s in of_diff(diff) if ", for the backward: " in s.title]
    assert said[0].title.partition(",")[0] == "Saved now and not before"
    done = CliRunner().invoke(main, ["diff", *paths, "--json"])
    document = json.loads(done.stdout)["saved"]
    rows = sorted((c["kind"], c["op"], c["module"], c["line"]) for c in document)
    in_text = [(s.title.partition(",")[0].lower(), *r[-3:]) for s in said for r in s.tables[0].rows]
    assert sorted(in_text) == rows
    on_page = [s.plain() for s in of_diff(diff) if ", for the backward: " in s.title]
    assert [s["title"] for s in on_page] == [s.title for s in said]
    assert [len(s["tables"][0]["rows"]) for s in on_page] == [len(s.tables[0].rows) for s in said]
    text = render_diff(diff)
    assert all(s.title in text for s in said)
    page = tmp_path / "diff.html"
    done = CliRunner().invoke(main, ["diff", *paths, "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "a.memprof → b.memprof" in page.read_text()
    refused = CliRunner().invoke(main, ["diff", *paths, "-o", paths[0]])
    assert refused.exit_code == 2
