"""Callbacks of training frameworks, called as the frameworks call them; test/docs/test_guides.py
runs the frameworks themselves."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import memprof

KINDS = ("transformers", "lightning")


def callback(kind: str, *args: Any, **options: Any) -> Any:
    pytest.importorskip(kind)
    module = importlib.import_module(f"memprof.integrations.{kind}")
    return module.MemprofCallback(*args, **options)


def begin(one: Any, kind: str) -> None:
    if kind == "transformers":
        one.on_train_begin(None, None, None, model=None)
    else:
        one.on_train_start(None, None)


def end(one: Any, kind: str) -> None:
    if kind == "transformers":
        one.on_train_end(None, None, None, model=None)
    else:
        one.on_train_end(None, None)


def train() -> None:
    weight = torch.zeros(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_a_profile_and_a_record_of_its_steps(kind: str, tmp_path: Path) -> None:
    steps, path = tmp_path / "steps.jsonl", tmp_path / "run.memprof"
    one = callback(kind, path, steps=steps)
    for _ in range(2):  # A second fit() of the same trainer begins anew.
        begin(one, kind)
        train()
        end(one, kind)
        assert memprof.load(path).profile().complete
        assert [json.loads(line)["step"] for line in steps.read_text().splitlines()] == [1, 2, 3]
    assert one.session.profile().complete


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_an_exception_has_ended_is_no_obstacle(kind: str, tmp_path: Path) -> None:
    # GIVEN a session of which a process has one, left open: transformers tells no callback
    one = callback(kind, tmp_path / "run.memprof", eager=True)
    begin(one, kind)
    first = one.session
    # WHEN the next run begins
    begin(one, kind)
    # THEN the first has ended, which would refuse the second, and that ends, too
    assert one.session is not first
    end(one, kind)
    assert memprof.load(tmp_path / "run.memprof").profile().complete
    with memprof.profile(eager=True):
        pass


def test_lightning_tells_what_ended_the_run(tmp_path: Path) -> None:
    one = callback("lightning", tmp_path / "run.memprof")
    begin(one, "lightning")
    one.on_exception(None, None, RuntimeError("no more data"))
    assert memprof.load(tmp_path / "run.memprof").profile().complete
    end(one, "lightning")


def test_wrong_arguments_are_told_before_the_run() -> None:
    with pytest.raises(ValueError, match="max_calls is -1"):
        callback("transformers", max_calls=-1)
