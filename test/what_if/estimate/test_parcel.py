"""What a model is when it arrives: as large, and shared as it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import memprof
from memprof.what_if.simulate.parcel import NoParcel, pack, unpack


def sent(value: Any) -> Any:
    return unpack(pack(value), "cpu")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 1000)
        self.head = torch.nn.Linear(1000, 1000)
        self.head.weight = self.embedding.weight
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("table", torch.ones(7))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_model_arrives_without_its_values(device: str) -> None:
    with torch.device(device):
        net = Net().eval()
    data = pack(net)
    assert len(data) < 20_000
    found = unpack(data, "cpu")
    assert isinstance(found.head, torch.nn.Linear)
    assert not found.training
    assert found.head.weight is found.embedding.weight
    assert [n for n, _ in found.named_parameters()] == [n for n, _ in net.named_parameters()]
    grads = [p.requires_grad for p in found.parameters()]
    assert grads == [p.requires_grad for p in net.parameters()] == [False, True, True]
    assert dict(found.named_buffers())["table"].shape == (7,)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_share_their_storage(device: str) -> None:
    base = torch.zeros(8, 16, dtype=torch.bfloat16, device=device)
    views = {"whole": base, "column": base[:, 3:5], "transposed": base.t(), "other": base.clone()}
    found = sent(views)
    for name, view in views.items():
        assert found[name].dtype is torch.bfloat16
        assert found[name].stride() == view.stride()
        assert found[name].storage_offset() == view.storage_offset()
    storages = {name: v.untyped_storage().data_ptr() for name, v in found.items()}
    assert storages["whole"] == storages["column"] == storages["transposed"] != storages["other"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_of_a_data_set_only_the_rows_that_are_given_are_sent(device: str) -> None:
    data = torch.zeros(1000, 64, device=device)
    rows = data[8:16]
    found = sent({"inputs": rows[:, :-1], "labels": rows[:, 1:], "none": data[900:900]})
    inputs, labels = found["inputs"], found["labels"]
    assert inputs.untyped_storage().data_ptr() == labels.untyped_storage().data_ptr()
    assert inputs.untyped_storage().nbytes() == rows.nbytes
    assert labels.storage_offset() - inputs.storage_offset() == 1
    assert (inputs.shape, inputs.stride()) == ((8, 63), (64, 1))
    assert found["none"].shape == (0, 64)
    odd = torch.zeros(99, dtype=torch.int8, device=device)[33:50]
    assert sent(odd).shape == (17,)


def test_classes_and_functions_of_a_notebook_go_by_value() -> None:
    local = type("OfANotebook", (torch.nn.Linear,), {"__module__": "__main__"})
    found = sent((local(2, 3), lambda x: x + 1))
    assert type(found[0]).__name__ == "OfANotebook"
    assert found[1](1) == 2


def hooked() -> torch.Tensor:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.register_post_accumulate_grad_hook(lambda p: None)
    return weight


@pytest.mark.parametrize(
    "value",
    [
        hooked(),
        torch.Generator(),
        torch.eye(3).to_sparse(),
        torch.ones(3, requires_grad=True) * 2,
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        threading.Lock(),
    ],
    ids=["hooked", "generator", "sparse", "computed", "nested", "lock"],
)
def test_what_cannot_be_sent(value: Any) -> None:
    with pytest.raises(NoParcel, match="cannot be sent"):
        pack([value])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": torch.ones(2)}, "model is a Tensor"),
        ({"model": torch.nn.Identity(), "optimizer": "adamw"}, "torch.optim.AdamW"),
        ({"model": torch.nn.Identity(), "loss": 3}, "loss is a int"),
    ],
)
def test_what_cannot_be_called_is_said_before_anything_runs(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        memprof.estimate(**arguments)
