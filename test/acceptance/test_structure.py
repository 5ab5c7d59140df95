"""No circle of imports, and torch's private parts where they are expected; the contracts of
import-linter in pyproject.toml hold the directions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "memprof",
    "what_if",
    "compile_backend",
    "cudagraph_trees",
    "compiled_autograd",
    "profiler",
    "simulated_cuda",
)


def _sources(folder: str) -> list[Path]:
    """The files of one folder; memprof/ holds links to the others."""
    return sorted(
        path
        for path in ROOT.joinpath(folder).rglob("*.py")
        if path.relative_to(ROOT).parts[:2] not in {("memprof", other) for other in FOLDERS}
    )


def _package(path: Path) -> list[str]:
    package = ["memprof", *path.relative_to(ROOT).parts[:-1]]
    return package[1:] if package[1:2] == ["memprof"] else package


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of each import; relative ones resolved from the folder layout."""
    for node in ast.walk(ast.parse(path.read_text())):
        for module in _imported(path, node):
            yield node.lineno, module


def _imported(path: Path, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    package = _package(path)
    base = package[: len(package) - node.level + 1] if node.level else []
    return [".".join([*base, *([node.module] if node.module else [])])]


def test_no_module_imports_itself_by_way_of_others() -> None:
    # Imports inside of functions, and for the type checker alone, count as well: they hide a
    # circle, they do not open it.
    paths = {
        ".".join([*_package(p), *([] if p.stem == "__init__" else [p.stem])]): p
        for folder in FOLDERS
        for p in _sources(folder)
    }
    uses: dict[str, set[str]] = {}
    for name, path in paths.items():
        uses[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            for module in _imported(path, node):
                names = [f"{module}.{a.name}" for a in node.names]  # from package import module
                uses[name] |= {n if n in paths else module for n in names} & paths.keys() - {name}
    while leaves := {n for n, used in uses.items() if not used & uses.keys()}:
        for leaf in leaves:
            del uses[leaf]
    assert not uses, sorted(uses)


def test_calls_of_the_graph_trees_go_down_the_lists_of_the_documentation() -> None:
    # GIVEN docs/architecture.md's files of a replay and of a recording, in the order of a call
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition("### Inside the graph trees")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if re.match(r"\d+\. ", line)]
    folder = ROOT / "cudagraph_trees"
    # THEN none imports one above it in its list, for a type checker or otherwise
    above: list[str] = []
    for line in lines:
        if line.startswith("1. "):
            above.clear()
        for name in re.findall(r"`([\w/]+\.py)`", line):
            used = {module for _, module in _imports(folder / name)}
            module = ".".join(["memprof.cudagraph_trees", *Path(name).with_suffix("").parts])
            assert not used & set(above), name
            above.append(module)
    assert len(lines) == 13


def test_private_torch_is_imported_in_the_compat_modules_alone() -> None:
    # use_in_inductor() replaces names in torch's own modules: that is what it is.
    allowed = {"cudagraph_trees/call/inductor.py"}
    wrong = []
    for folder in FOLDERS:
        for path in _sources(folder):
            name = str(path.relative_to(ROOT))
            if path.name.startswith("_torch_") or name in allowed:
                continue
            wrong += [
                f"{name}:{line} imports {module}"
                for line, module in _imports(path)
                if module.startswith("torch._")
            ]
    assert not wrong
