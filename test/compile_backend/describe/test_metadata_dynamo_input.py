"""What a value is to Dynamo is read from where it stands, never from its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memprof.compile_backend.stages.describe.comparison import compared
from memprof.compile_backend.stages.describe.dynamo_input import (
    DynamoInput,
    classify,
    dynamo_inputs,
)
from memprof.compile_backend.stages.describe.graph_io import describe_graph, user_frame
from memprof.compile_backend.stages.describe.graph_value import extent_bytes
from memprof.profiler.model import Category, GraphKind, Role, ViewAndMutationMeta


def of(function: Any, *args: Any) -> dict[str, DynamoInput]:
    """The inputs of the only graph of ``function``, by source."""
    found: list[tuple[DynamoInput, ...]] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        found.append(dynamo_inputs(gm, example_inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    (inputs,) = found
    return {i.source: i for i in inputs}


def role(i: DynamoInput) -> str:
    return i.role.value


class Odd(torch.nn.Module):
    """Everything a module can hold, under misleading names."""

    def __init__(self) -> None:
        super().__init__()
        self.grad = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("weight", torch.ones(2))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.state = torch.ones(2)
        self.inner = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    def forward(self, exp_avg: torch.Tensor) -> torch.Tensor:
        total = self.grad + self.weight + self.scratch + self.state + exp_avg
        return self.inner[0](total)


def test_attributes_of_a_module() -> None:
    found = of(Odd(), torch.ones(2))
    by_fqn = {i.fqn: role(i) for i in found.values() if i.fqn}
    assert by_fqn == {
        "grad": "parameter",
        "weight": "buffer",
        "scratch": "buffer",
        "inner.0.weight": "parameter",
        "inner.0.bias": "parameter",
    }
    # A tensor that is neither, and an argument named like optimizer state.
    assert sorted(role(i) for i in found.values() if not i.fqn) == ["user_input", "user_input"]


def test_names_in_several_modules_tell_them_apart() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    found = of(lambda x: first(x) + second(x), torch.ones(2))
    assert {i.fqn for i in found.values()} == {
        None,
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
    }


GLOBAL = torch.ones(2)


def test_tensors_of_the_frame() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    leaf = torch.ones(2, requires_grad=True)
    box = {"weight": torch.ones(2), "module": torch.nn.Linear(2, 2)}

    def f(x: Any) -> Any:
        return x * parameter + leaf + box["weight"] + GLOBAL + box["module"].weight.sum()

    found = of(f, torch.ones(2))
    assert sorted(role(i) for i in found.values()) == [*["parameter"] * 2, *["user_input"] * 4]
    assert {i.fqn for i in found.values() if i.role is Role.PARAMETER} == {
        "L['parameter']",
        "weight",
    }


def test_gradient_of_a_parameter() -> None:
    module = torch.nn.Linear(2, 2)
    module.weight.grad = torch.ones(2, 2)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)

    class Result:
        pass

    result = Result()
    result.grad = torch.ones(2)  # type: ignore[attr-defined]

    def f() -> Any:
        return module.weight.grad.sum() + (parameter * parameter.grad).sum() + result.grad.sum()

    found = of(f)
    assert {
        i.source.rpartition(".")[0]: role(i) for i in found.values() if ".grad" in i.source
    } == {
        "L['module']._parameters['weight']": "parameter_gradient",
        "L['parameter']": "parameter_gradient",
        "L['result']": "user_input",
    }


OPTIMIZER = (("local", "o"), ("optimizer", None))
GROUP = (*OPTIMIZER, ("attr", "param_groups"), ("item", 0))
MODULE = (("local", "m"), ("module", None))


@pytest.mark.parametrize(
    ("source_path", "expected"),
    [
        ((), "user_input"),
        ((("local", "x"),), "user_input"),
        ((*OPTIMIZER, ("attr", "state"), ("item", 0), ("item", "exp_avg")), "optimizer_state"),
        ((*GROUP, ("item", "lr")), "optimizer_state"),
        ((*GROUP, ("item", "params"), ("item", 3)), "parameter"),
        ((*GROUP, ("item", "params"), ("item", 3), ("grad", "grad")), "parameter_gradient"),
        ((*MODULE, ("registry", "_parameters"), ("item", "w")), "parameter"),
        (
            (*MODULE, ("registry", "_parameters"), ("item", "w"), ("attr", "grad")),
            "parameter_gradient",
        ),
        ((*MODULE, ("attr", "_buffers"), ("item", "w")), "buffer"),
        ((("local", "d"), ("attr", "_buffers"), ("item", "w")), "user_input"),
        ((("local", "d"), ("attr", "grad")), "user_input"),
    ],
)
def test_classification_of_sources(source_path: Any, expected: str) -> None:
    assert classify(source_path, False, set()).value == expected


def test_elements_of_a_list_count_as_inputs() -> None:
    """Compiled autograd passes its tensors in one list; AOTAutograd numbers what is inside."""
    g = torch.fx.Graph()
    g.placeholder("inputs")
    g.placeholder("size")
    g.output(())
    parameter = torch.nn.Parameter(torch.ones(1))
    found = dynamo_inputs(torch.fx.GraphModule({}, g), [[torch.ones(1), parameter], 3])
    assert [(i.name, i.index, role(i)) for i in found] == [
        ("inputs_0", 0, "user_input"),
        ("inputs_1", 1, "parameter"),
        ("size", 2, "user_input"),
    ]


# --- graphs that say little ---------------------------------------------------------------


def graph(*values: Any) -> torch.fx.GraphModule:
    """A graph that returns its inputs, without descriptors."""
    g = torch.fx.Graph()
    nodes = []
    for i, value in enumerate(values):
        node = g.placeholder(f"arg{i}")
        node.meta["val"] = value
        nodes.append(node)
    g.output((*nodes, None))
    return torch.fx.GraphModule({}, g)


def test_a_graph_without_descriptors_is_described_as_far_as_it_goes() -> None:
    gm = graph(torch.empty(2, 3), 7, torch.Generator(), object())
    io = describe_graph(
        gm,
        kind=GraphKind.INFERENCE,
        fw_metadata=ViewAndMutationMeta(),
        dynamo_inputs=(),
        forward=None,
    )
    assert [v.role for v in io.inputs] == [Role.UNKNOWN, Role.SIZE, Role.RNG_STATE, Role.OPAQUE]
    # What stays where it is, and what is written to, Inductor alone says.
    agreed, disagreements = compared(io.description, GraphKind.INFERENCE, (0,), (3,))
    assert (agreed.static, agreed.mutated, disagreements) == ((0,), (3,), [])
    assert io.inputs[0].nbytes == 24
    assert [v.name for v in io.outputs] == ["arg0", "arg1", "arg2", "arg3", ""]
    assert io.outputs[0].alias_of_input == 0


def test_a_backward_alone_knows_its_saved_values_by_position() -> None:
    io = describe_graph(
        graph(torch.empty(2)),
        kind=GraphKind.BACKWARD,
        fw_metadata=ViewAndMutationMeta(),
        dynamo_inputs=(),
        forward=None,
    )
    assert (io.inputs[0].role, io.inputs[0].category) == (
        Role.SAVED_FOR_BACKWARD,
        Category.ACTIVATION,
    )
    assert io.inputs[0].forward_output is None


@pytest.mark.parametrize(
    ("tensor", "nbytes"),
    [
        (torch.empty(2, 3), 24),
        (torch.empty(0, 3), 0),
        (torch.empty(()), 4),
        (torch.empty(3).expand(5, 3), 12),
        (torch.empty(4, 4)[:, :2], (3 * 4 + 2) * 4),
        (torch.empty(3, dtype=torch.float64), 24),
    ],
)
def test_extent(tensor: torch.Tensor, nbytes: int) -> None:
    assert extent_bytes(tensor) == nbytes


def test_user_frame() -> None:
    torch_file = f"{torch.__path__[0]}/nn/modules/linear.py"
    outer = '  File "/a b/model.py", line 7, in forward\n    return self.fc(x)\n'
    inner = f'  File "{torch_file}", line 125, in forward\n    return F.linear()\n    ^^^^^\n'
    assert user_frame(outer + inner) == "/a b/model.py:7"
    assert user_frame(outer + outer.replace("7", "9") + inner) == "/a b/model.py:9"
    assert user_frame(inner) == f"{torch_file}:125"
    assert user_frame(None) is None
    assert user_frame("") is None
