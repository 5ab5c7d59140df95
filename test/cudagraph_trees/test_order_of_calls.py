"""A call goes through the files that docs/architecture.md lists, in an order that
``test/acceptance/test_structure.py`` holds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
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


def entered(step: Callable[[], None]) -> set[str]:
    """Files of the graph trees of which a step calls a function."""
    files: set[str] = set()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        files.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    paths = (Path(file).resolve() for file in files)
    return {str(path.relative_to(FOLDER)) for path in paths if path.is_relative_to(FOLDER)}


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


def test_a_replay_and_a_recording_go_through_the_files_of_the_documentation() -> None:
    # GIVEN a training step that is compiled; it is warmed up, recorded and then replayed
    step = training_step()
    step()
    # WHEN what each step enters is written down
    steps = [entered(step) for _ in range(7)]
    # THEN the documentation names what a reader meets: a replay enters all of its short list, and
    # the recording, of its own, what does not wait for an input that moves
    replay, recording = listed()
    assert replay <= steps[-1]
    assert recording - max(steps, key=len) <= {"steps/moves.py", "device/protocol.py"}
