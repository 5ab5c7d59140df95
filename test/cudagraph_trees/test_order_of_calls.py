"""A call goes down through the files that docs/architecture.md lists, and never back up."""

from __future__ import annotations

import functools
import gc
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from .support import next_step

pytestmark = pytest.mark.simgpu

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "cudagraph_trees"


@functools.cache
def room(file: str) -> str | None:
    """A file's name in the folder of the graph trees; None for any other."""
    path = Path(file).resolve()
    return str(path.relative_to(FOLDER)) if path.is_relative_to(FOLDER) else None


class Rooms:
    """Which files of the graph trees this thread enters.

    Attributes:
        entered: in order of the first time.
        climbs: (file, file, function) of calls into a file that a call further out is in, from
            another one: the reader has to go back to what was left. What torch or the program
            calls from inside begins anew.
    """

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.climbs: list[tuple[str | None, str, str]] = []
        self._stack: list[str | None] = []  # None is a file of somebody else

    @contextmanager
    def watched(self) -> Iterator[Rooms]:
        # Finalizers run wherever the collector does.
        gc.collect()
        gc.disable()
        sys.setprofile(self._profile)
        try:
            yield self
        finally:
            sys.setprofile(None)
            gc.enable()

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        if event == "return":
            if self._stack:  # not the one that began before
                self._stack.pop()
            return
        name = room(frame.f_code.co_filename)
        if name is not None:
            if name not in self.entered:
                self.entered.append(name)
            callers = list(itertools.takewhile(bool, reversed(self._stack)))
            if name in callers and name != callers[0]:
                self.climbs.append((callers[0], name, frame.f_code.co_name))
        self._stack.append(name)


def listed() -> list[set[str]]:
    """The files of a replay and of a recording in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("### Inside the graph trees")[2].partition("\n## ")[0]
    lists = re.findall(r"(?:^\d+\. .*\n(?:^ .*\n)*)+", section, re.MULTILINE)
    return [set(re.findall(r"`([\w/]+\.py)`", found)) for found in lists]


def training_step() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
    compiled = torch.compile(model, backend="memprof")
    x = torch.ones(4, 8, device="cuda")

    def step() -> None:
        next_step()
        compiled(x).sum().backward()
        model.zero_grad()

    return step


def test_a_replay_and_a_recording_go_down_the_files_of_the_documentation() -> None:
    # GIVEN a training step that is compiled; it is warmed up, recorded and then replayed
    step = training_step()
    step()
    steps = []
    # WHEN what each step enters is written down
    for _ in range(7):
        with Rooms().watched() as rooms:
            step()
        steps.append(rooms)
    # THEN no call ever went back up, into a file that a caller of it was in
    assert [rooms.climbs for rooms in steps] == [[]] * 7
    # AND the documentation names what a reader meets: a replay enters all of its short list, and
    # the recording, of its own, what does not wait for a failure or for an input that moves
    replay, recording = listed()
    assert replay <= set(steps[-1].entered)
    most = max((set(rooms.entered) for rooms in steps), key=len)
    assert recording - most <= {"capture/recovery.py", "moves.py", "device/protocol.py"}
