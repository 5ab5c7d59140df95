"""Every command and every piece of code in the documentation runs.

A page's fenced ``bash``, ``console`` and ``python`` blocks run from top to bottom in one folder,
prepared as a reader's would be after some work (``prepared``). So do blocks without a language that
begin with a command. Python blocks of a page share their names, like the cells of a notebook. A
block that cannot run here has an HTML comment before it that says why:
``<!-- not run: needs a GPU -->``.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import linecache
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import memprof
import memprof.cudagraph_trees as trees
from memprof.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+?) -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PLAIN = re.compile(r"memprof (report|top|diff|export|config|doctor)\b[^|&;<>$*\\'\"]*$")
"""A command that needs no shell: it runs in this process, which has torch."""
COMMAND = re.compile(r"^(\$ )?(memprof|make|python|pip|torchrun|export) [a-z.-]")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its first line of text."""

    language: str
    text: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = []
    for m in FENCE.finditer(text):
        language = m["language"]
        if not language and COMMAND.match(m["text"]):
            language = "bash"
        line = text[: m.start("text")].count("\n") + 1
        found.append(Block(language, m["text"], line, m["reason"]))
    return found


ZEROS = f"""
import sys

sys.path.append({str(ROOT / "test")!r})
import torch._inductor.async_compile

import kernels

kernels.compile_together()
kernels.write_zeros(True)
"""
"""Before a script: Note [Kernels that write zeros] in test/kernels.py."""
TRAIN = """
import torch
from torch import nn

import memprof


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def main():
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(Block(), Block()), backend="memprof")
    with memprof.profile("run.{rank}.memprof"):
        for _ in range(3):
            model(torch.randn(64, 64)).sum().backward()


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script and with the profiles that pages speak of."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "train.py").write_text(ZEROS + TRAIN)
    for name, steps in (("run.memprof", 160), ("before.memprof", 3), ("after.memprof", 3)):
        torch._dynamo.reset()
        with memprof.profile(folder / name):
            train(torch.compile(make_model(), backend="memprof"), steps)
    (folder / "out").mkdir()
    shutil.copy(folder / "run.memprof", folder / "out" / "gpt.memprof")
    return folder


@pytest.fixture
def prepared(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "work"))


class Model(nn.Sequential):
    """Returns its loss, so that code may say ``model(x).backward()`` or sum it first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = super().forward(x)
        return y.square().mean()


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return Model(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def train(model: nn.Module, steps: int = 3) -> None:
    for _ in range(steps):
        model(torch.ones(8, 64)).sum().backward()


def names() -> dict[str, Any]:
    """What code in the pages may take for granted."""
    model = make_model()
    x = torch.ones(8, 64)

    def backward() -> None:
        model(x).sum().backward()

    return {
        "torch": torch,
        "nn": nn,
        "memprof": memprof,
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "x": x,
        "batches": [x, x],
        "data": [x, x],
        "train": train,
        "train_some_steps": lambda: train(model),
        "other_loss": types.SimpleNamespace(backward=backward),
        "__name__": "docs",
    }


@pytest.mark.zero_kernels
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page(page: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    shown = names()
    for block in blocks(page):
        if block.reason is not None:
            continue
        if block.language in ("bash", "console"):
            run_commands(page, block, prepared)
        elif block.language == "python":
            run_python(page, block, shown)


def run_commands(page: Path, block: Block, folder: Path) -> None:
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    at = f"{page.name}:{block.line}"
    for is_plain, some in itertools.groupby(lines, lambda line: bool(PLAIN.match(line))):
        if not is_plain:
            done = subprocess.run(
                ["bash", "-eu", "-o", "pipefail", "-c", "\n".join(some)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{at}\n{done.stdout}\n{done.stderr}"
            continue
        for line in some:
            found = CliRunner().invoke(main, shlex.split(line, comments=True)[1:])
            assert found.exit_code == 0, f"{at}: {line}\n{found.output}\n{found.exception}"


def run_python(page: Path, block: Block, shown: dict[str, Any]) -> None:
    # A source that linecache knows, so that provenance finds the lines.
    source = f"<{page.name}:{block.line}>"
    linecache.cache[source] = (
        len(block.text),
        None,
        block.text.splitlines(keepends=True),
        source,
    )
    with contextlib.redirect_stdout(io.StringIO()), undone_trees():
        exec(compile(block.text, source, "exec"), shown)


@contextlib.contextmanager
def undone_trees() -> Iterator[None]:
    """Code in a page may put memprof's graph trees in the place of torch's."""
    used: list[trees.InductorTrees] = []
    original = trees.use_in_inductor

    def use_in_inductor(*args: Any) -> trees.InductorTrees:
        used.append(original(*args))
        return used[-1]

    with mock.patch.object(trees, "use_in_inductor", use_in_inductor):
        try:
            yield
        finally:
            for one in used:
                one.undo()


def test_each_comment_belongs_to_a_block_and_says_why() -> None:
    for page in PAGES:
        reasons = [b.reason for b in blocks(page) if b.reason is not None]
        assert page.read_text().count("<!-- not run:") == len(reasons), page.name
        assert all(len(reason) > 10 for reason in reasons), page.name


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} → {target}"


def test_sections_that_are_linked_exist() -> None:
    def slug(title: str) -> str:
        return re.sub(r"[^\w\- ]", "", title.lower().replace("`", "")).replace(" ", "-")

    for page in PAGES:
        for target, section in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
            if "://" in target:
                continue
            text = (page.parent / target).read_text() if target else page.read_text()
            titles = {slug(t) for t in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
            assert section in titles, f"{page.name} → {target}#{section}"
