"""``options=`` and ``mode=``: what is accepted, and what the errors say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

from memprof.compile_backend import _torch_compat, backend
from memprof.compile_backend.inner_compile import InnerCompile
from memprof.compile_backend.options import OptionError, Options, split_options


def test_own_options_and_inductors_are_told_apart() -> None:
    own, inductor = split_options({"observe_runs": 1, "max-autotune": True}, None)
    assert own == Options(observe_runs=1)
    assert inductor == {"max_autotune": True}


def test_mode_comes_first_and_options_override_it() -> None:
    _, inductor = split_options(None, "max-autotune-no-cudagraphs")
    assert inductor["max_autotune"] is True
    _, inductor = split_options({"max_autotune": False}, "max-autotune-no-cudagraphs")
    assert inductor["max_autotune"] is False
    assert split_options(None, "default") == (Options(), {})


@pytest.mark.parametrize(
    ("options", "mode", "expected"),
    [
        (None, None, True),
        (None, "reduce-overhead", True),
        (None, "max-autotune-no-cudagraphs", False),
        ({"triton.cudagraphs": False}, None, False),
        ({"triton.cudagraphs": False, "graphs": True}, None, True),
        ({"graphs": False}, "reduce-overhead", False),
    ],
)
def test_who_asks_for_no_cuda_graphs_gets_none(
    options: dict[str, object] | None,
    mode: str | None,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a graph that runs on CUDA
    monkeypatch.setattr(backend, "runs_on_cuda", lambda gm, inputs: True)
    given: list[tuple[bool, dict[str, object]]] = []

    def compile_fx(gm: object, inputs: object, inner: InnerCompile, config: Any, **_: Any) -> None:
        given.append((inner.graphs, config))

    monkeypatch.setattr(_torch_compat, "run_compile_fx", compile_fx)
    # WHEN it is compiled
    backend.memprof(torch.fx.symbolic_trace(lambda x: x), [], options=options, mode=mode)
    # THEN trees and Inductor are told what was asked for
    ((in_trees, config),) = given
    assert (in_trees, config["triton.cudagraphs"]) == (expected, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observe_run": 1}, "unknown option 'observe_run'; did you mean 'observe_runs'"),
        ({"max_autotun": True}, "did you mean 'max_autotune'"),
        ({"zzz": 1}, "unknown option 'zzz'. memprof's own options are"),
        ({"observe_runs": "2"}, "option 'observe_runs' must be int, but is '2' (str)"),
        ({"observe_runs": True}, "option 'observe_runs' must be int, but is True (bool)"),
        ({"observe_runs": -1}, "option 'observe_runs' is -1; it must be 0 or more"),
        ({"graphs": "yes"}, "option 'graphs' must be bool or NoneType, but is 'yes' (str)"),
        ({"outputs": "copy"}, "option 'outputs' is 'copy'; it must be 'error' or 'clone'"),
        ({"rocm.arch": "gfx90a"}, "option 'rocm.arch' must be list, but is 'gfx90a' (str)"),
        ({"max_autotune": "yes"}, "option 'max_autotune' must be bool, but is 'yes' (str)"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        split_options(options, None)
    assert message in str(caught.value)


def test_every_inductor_option_takes_its_default() -> None:
    # list[str], dict[str, Any], tuple[int, int, int], Literal, ...
    defaults = inductor_config.get_config_copy()  # type: ignore[attr-defined, unused-ignore]
    assert len(defaults) > 300
    for name, value in defaults.items():
        assert split_options({name: value}, None)[1] == {name: value}


def test_every_option_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "options.md").read_text()
    for field in dataclasses.fields(Options):
        assert f"\n| `{field.name}` |" in text, field.name


def test_an_unknown_mode_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="Unrecognized mode"):
        split_options(None, "fastest")


def test_a_bad_option_reaches_the_user_through_torch_compile() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="memprof", options={"observe_run": 1})
    with pytest.raises(Exception, match="did you mean 'observe_runs'"):
        compiled(torch.ones(2))


def test_inductor_options_reach_inductor() -> None:
    seen: list[bool] = []

    def look(graph: torch.fx.Graph) -> None:
        seen.append(torch._inductor.config.epilogue_fusion)

    options = {"epilogue_fusion": False, "post_grad_custom_post_pass": look}
    compiled = torch.compile(lambda x: x + 1, backend="memprof", options=options)
    compiled(torch.ones(2))
    assert seen == [False]
