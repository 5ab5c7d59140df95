"""What has to be kept so that values can be computed again, on code as Inductor writes it."""

from __future__ import annotations

from profile_builder import buffer, node

from memprof.profiler.advice.recomputed_peak import Needs
from memprof.profiler.model import (
    Category,
    GraphKind,
    GraphRecord,
    GraphValue,
    Role,
    Statement,
    StatementKind,
)

ALLOC, KERNEL, REUSE = StatementKind.ALLOC, StatementKind.KERNEL, StatementKind.REUSE
MM, TRITON = "extern_kernels.mm(", "triton_poi_fused_0.run("


def graph(*lines: tuple[StatementKind, str, str, str]) -> GraphRecord:
    """Of statements: kind, names that are assigned, names that are read, text. Buffers are made in
    the order in which they are named."""
    statements = tuple(
        Statement(i, kind, tuple(targets.split()), tuple(reads.split()), text, "call")
        for i, (kind, targets, reads, text) in enumerate(lines, 1)
    )
    names = list(dict.fromkeys(n for s in statements for n in s.targets))
    ops = {s.reads[-1]: "aten.mm.default" for s in statements if s.text == MM}
    return GraphRecord(
        0,
        GraphKind.FORWARD,
        inputs=(GraphValue(0, "weight", Role.PARAMETER, Category.PARAMETER),),
        nodes={n: node(n, ops.get(n, "aten.add.Tensor"), None, None) for n in names},
        buffers={n: buffer(n, n) for n in names},
        statements=statements,
    )


def needs(of: GraphRecord, sizes: dict[str, int], kept: str, *recomputed: str) -> dict[str, int]:
    found = Needs(of, sizes, kept.split()).of(recomputed)
    return {name: size for need in found.values() for name, size in need.kept.items()}


PROJECTED = graph(
    (ALLOC, "q", "", "q = empty_strided_cuda("),
    (KERNEL, "", "x weight q", MM),
    (ALLOC, "low", "", "low = empty_strided_cuda("),
    (KERNEL, "", "x adapter low", MM),
    (ALLOC, "turned", "", "turned = empty_strided_cuda("),
    (KERNEL, "", "q low table turned", TRITON),
)


def test_what_a_matrix_product_made_is_kept_in_its_place() -> None:
    # GIVEN queries that are turned, of two products that nobody keeps
    sizes = {"q": 16, "low": 16, "turned": 16}
    # WHEN they are computed again THEN their sum takes as much as they did, whoever makes it
    assert sum(needs(PROJECTED, sizes, "turned", "turned").values()) == 16
    # WHEN what they are made of is kept anyway THEN it costs nothing
    assert needs(PROJECTED, sizes, "turned q low", "turned") == {}


def test_what_an_elementwise_kernel_made_is_computed_again_where_that_is_less() -> None:
    # GIVEN keys that are repeated for four heads each
    code = graph(
        (ALLOC, "k", "", "k = empty_strided_cuda("),
        (KERNEL, "", "x weight k", MM),
        (ALLOC, "wide", "", "wide = empty_strided_cuda("),
        (KERNEL, "", "k wide", TRITON),
        (ALLOC, "repeated", "", "repeated = empty_strided_cuda("),
        (KERNEL, "", "wide repeated", TRITON),
    )
    sizes = {"k": 4, "wide": 8, "repeated": 16}
    assert needs(code, sizes, "repeated", "repeated") == {"k": 4}
    # What inputs of the graph tell is there in any case.
    assert needs(graph((KERNEL, "", "x y", TRITON)), {"y": 4}, "y", "y") == {}


def test_what_is_told_to_run_again_is_not_kept_in_its_place() -> None:
    # GIVEN queries that are turned, of two products that nobody keeps
    sizes = {"q": 16, "low": 16, "turned": 16}
    # WHEN one of the products runs again as well THEN the other one is kept
    found = Needs(PROJECTED, sizes, ["turned"], lambda n: n.name == "q").of(["turned"])
    assert found["turned"].kept == {"low": 16}
    # WHEN both do THEN nothing is
    found = Needs(PROJECTED, sizes, ["turned"], lambda n: True).of(["turned"])
    assert found["turned"].kept == {}


def test_what_is_updated_in_place_was_there_before() -> None:
    # GIVEN a residual that is added to a product in place, and a normalisation of the sum
    code = graph(
        (ALLOC, "out", "", "out = empty_strided_cuda("),
        (KERNEL, "", "x weight out", MM),
        (REUSE, "sum", "out", "sum = out; del out  # reuse"),
        (ALLOC, "normed", "", "normed = empty_strided_cuda("),
        (KERNEL, "", "sum x scale normed", TRITON),
    )
    sizes = {"out": 8, "sum": 8, "normed": 4}
    # WHEN the sum is kept THEN the normalisation is computed of it
    assert needs(code, sizes, "sum normed", "normed") == {}
    # WHEN it is not THEN the product is kept, which the sum has overwritten
    assert needs(code, sizes, "normed", "normed") == {"out": 8}
    # WHEN the sum is computed again THEN its normalisation is of no use
    assert needs(code, {**sizes, "normed": 8}, "sum normed", "sum") == {"out": 8}


def test_what_takes_memory_of_another_is_no_update() -> None:
    code = graph(
        (ALLOC, "old", "", "old = empty_strided_cuda("),
        (KERNEL, "", "x weight old", MM),
        (REUSE, "new", "old", "new = old; del old  # reuse"),
        (KERNEL, "", "x new", TRITON),
    )
    assert needs(code, {"old": 8, "new": 8}, "new", "new") == {}


def test_what_several_need_counts_once() -> None:
    code = graph(
        (ALLOC, "p", "", "p = empty_strided_cuda("),
        (KERNEL, "", "x weight p", MM),
        (ALLOC, "a", "", "a = empty_strided_cuda("),
        (KERNEL, "", "p a", TRITON),
        (ALLOC, "b", "", "b = empty_strided_cuda("),
        (KERNEL, "", "p b", TRITON),
    )
    assert needs(code, {"p": 4, "a": 8, "b": 8}, "a b", "a", "b") == {"p": 4}


def test_code_that_contradicts_itself_ends() -> None:
    code = graph(
        (REUSE, "a", "b", "a = b"),
        (REUSE, "b", "a", "b = a"),
        (KERNEL, "", "a c b", TRITON),
        (StatementKind.VIEW, "d", "e", "d = e[0]"),
        (StatementKind.VIEW, "e", "d", "e = d[0]"),
        (KERNEL, "", "d e f", TRITON),
    )
    assert needs(code, {"a": 1, "b": 1, "d": 1}, "a b d e", "a", "b", "d", "e") == {}


def test_what_is_computed_one_from_the_other() -> None:
    # GIVEN what runs past three blocks, each of which adds a product, kept or not
    code = graph(
        *(
            line
            for i in (1, 2, 3)
            for line in (
                (ALLOC, f"p{i}", "", ""),
                (KERNEL, "", f"x{i - 1} weight p{i}", MM),
                (ALLOC, f"x{i}", "", ""),
                (KERNEL, "", f"x{i - 1} p{i} x{i}", TRITON),
            )
        )
    )
    sizes = dict.fromkeys(("p1", "p2", "p3", "x1", "x2", "x3"), 4)
    kept = "p1 p2 p3 x1 x2 x3"
    found = Needs(code, sizes, kept.split()).of(["x1", "x2", "x3"])
    # THEN each is there again when a later one is
    assert {name: sorted(need.before) for name, need in found.items()} == {
        "x1": [],
        "x2": ["x1"],
        "x3": ["x1", "x2"],
    }
    assert not any(need.kept for need in found.values())
    # WHEN one in the middle stays THEN what comes after it is made of that
    found = Needs(code, sizes, kept.split()).of(["x1", "x3"])
    assert {name: need.before for name, need in found.items()} == {"x1": [], "x3": []}


def test_a_partition_hands_on_what_it_was_given() -> None:
    # GIVEN a call of a partition that returns a weight besides
    code = graph(
        (ALLOC, "p", "", ""),
        (KERNEL, "", "x weight p", MM),
        (ALLOC, "y", "", ""),
        (KERNEL, "", "p weight y", TRITON),
        (StatementKind.CALL, "p y weight", "arguments", "p, y, weight = partitions[0](arguments)"),
    )
    # THEN it is an input all the same
    assert needs(code, {"p": 4, "y": 4}, "y", "y") == {"p": 4}
