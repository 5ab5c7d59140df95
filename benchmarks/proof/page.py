"""Makes docs/real-gpu.md, the README's sentence and the tables of kernels that estimates of time
use, of what was measured: ``make real-gpu-page``.

Every folder of results (``CARD-DATE``) is a section, every part a table or more, bad rows included.
``page.md`` beside this file is what stands before them. It needs nothing but Python.
"""

from __future__ import annotations

import json
import re
import string
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import tomllib

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "real-gpu"
PAGE = ROOT / "docs" / "real-gpu.md"
README = ROOT / "README.md"
GPUS = ROOT / "simulated_cuda" / "gpus.toml"
KERNEL_TABLES = ROOT / "what_if" / "estimate" / "tables"

NONE = "**No GPU has been measured yet**: below stands how to do it, and no result."
NOT_YET = (
    "They are tested on a simulated CUDA device that computes real values; they have not run on a "
    "real GPU yet ([one command measures it](docs/real-gpu.md)), so keep "
    '`options={"graphs": False}` at hand.'
)
MEASURED = (
    "They are tested on a simulated CUDA device that computes real values, and were measured on "
    "%s: of %d runs of models %d have Inductor's values, to rounding or as far as Inductor has "
    "them when it runs again ([every row](docs/real-gpu.md))."
)
ROUNDING = 1e-6
"""In units of a tensor's largest element: a backward that is compiled as a whole adds in another
order."""
MARKS = ("<!-- real GPU: make real-gpu-page -->", "<!-- end -->")


class Table(NamedTuple):
    """Rows of one kind of one part, as columns with a template each."""

    part: str
    kind: str
    columns: dict[str, str]


BESIDE_INDUCTOR = {
    "case": "{case}",
    "values": "{what}",
    "equal": "{equal} of {tensors}",
    "difference": "{difference:.1e}",
    "Inductor again: equal": "{control_equal} of {tensors}",
    "its difference": "{control_difference:.1e}",
}
GRAPHS = {
    "case": "{case}",
    "replays": "{replays}",
    "recordings": "{recordings}",
    "no graph": "{given_up}",
}
RATE = {"dtype": "{dtype}", "µs": "{us[median]:.1f}", "TFLOP/s": "{per_second:T}"}
COST = {"µs on the host": "{host_us[median]:.2f}", "on the device": "{device_us[median]:.2f}"}
ENDED_BADLY = Table(
    "", "", {"case that did not end well": "{case}", "ended": "{ended}", "why": "{error}"}
)
TABLES = (
    Table("values", "values", BESIDE_INDUCTOR),
    Table("values", "graphs", GRAPHS),
    Table(
        "memory",
        "peaks",
        {
            "case": "{case}",
            "peak reserved, MiB": "{reserved_peak:MiB}",
            "peak allocated": "{allocated_peak:MiB}",
            "reserved at the end": "{reserved:MiB}",
            "in pools of graphs": "{pools:MiB}",
        },
    ),
    Table(
        "memory",
        "report",
        {
            "report of": "{case}",
            "its total, B": "{total:,}",
            "the allocator's peak, B": "{counter:,}",
            "not explained, B": "{unexplained:,}",
            "beside the allocator, MiB": "{outside:MiB}",
        },
    ),
    Table(
        "memory",
        "device",
        {
            "at the end of": "{case}",
            "reserved, MiB": "{reserved:MiB}",
            "used of the device, by the driver": "{device_used:MiB}",
            "by NVML": "{nvml_used:MiB}",
            "by process": "{nvml_processes}",
        },
    ),
    Table("memory", "graphs", GRAPHS),
    Table(
        "driver",
        "line",
        {
            "act": "{what}",
            "samples": "{samples}",
            "KiB each": "{bytes_each:KiB}",
            "KiB once": "{bytes_once:KiB}",
        },
    ),
    Table("driver", "sample", {"act": "{what}", "count": "{count}", "MiB": "{bytes:MiB}"}),
    Table(
        "scripts",
        "peaks",
        {
            "script": "{case}",
            "reserved: simulated, MiB": "{simulated_reserved:MiB}",
            "measured": "{reserved:MiB}",
            "off, %": "{reserved_off:+.2f}",
            "allocated: simulated, MiB": "{simulated_allocated:MiB}",
            "measured, MiB": "{allocated:MiB}",
            "off": "{allocated_off:+.2f}",
        },
    ),
    Table(
        "times",
        "step",
        {
            "case": "{case}",
            "way": "{contender}",
            "ms a step": "{step_ms[median]:.3f} ({step_ms[low]:.3f} to {step_ms[high]:.3f})",
            "on the host": "{host_ms[median]:.3f} ({host_ms[low]:.3f} to {host_ms[high]:.3f})",
            "of Inductor's": "{ratio:.3f}",
        },
    ),
    Table("times", "graphs", GRAPHS),
    Table("kernels", "gemm", {"matrix product": "{m} x {n} x {k}", **RATE}),
    Table(
        "kernels",
        "attention",
        {"attention": "{direction}, {batch} x {heads} x {tokens} x {size}", **RATE},
    ),
    Table(
        "kernels",
        "bandwidth",
        {
            "operator": "{operator}",
            "KiB moved": "{bytes:KiB}",
            "dtype": "{dtype}",
            "µs": "{us[median]:.1f}",
            "GB/s": "{per_second:G}",
        },
    ),
    Table("kernels", "launch", {"launch": "{operator}", **COST}),
    Table("kernels", "graph", {"nodes of a graph": "{nodes}", **COST}),
    Table("kernels", "copy", {"copy": "{operator}", "KiB": "{bytes:KiB}", **COST}),
    Table("kernels", "failed", {"call": "{what}", "failed": "{error}"}),
    Table(
        "gpu_tests",
        "counts",
        {"passed": "{passed}", "failed or error": "{failed}", "skipped": "{skipped}"},
    ),
    Table("gpu_tests", "not passed", {"test": "{test}", "ended": "{ended}"}),
    Table("faults", "values", BESIDE_INDUCTOR),
    Table("faults", "graphs", GRAPHS),
)


class Cells(string.Formatter):
    """Fills templates: sizes and rates by their unit, nothing for what is not known."""

    UNITS = {"KiB": 2**10, "MiB": 2**20, "G": 1e9, "T": 1e12}  # noqa: RUF012

    def format_field(self, value: Any, spec: str) -> str:
        if value is None:
            return ""
        if isinstance(value, list):
            return "; ".join(value)
        if spec in self.UNITS:
            return f"{value / self.UNITS[spec]:,.1f}"
        return format(value, spec)


def markdown(columns: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """A table of rows."""
    cells = [[Cells().vformat(t, (), row) for t in columns.values()] for row in rows]
    lines = [[*columns], ["---"] * len(columns), *cells]
    clean = ([re.sub(r"\s*[|\n]\s*", " / ", cell) for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in clean)


def section(contents: list[dict[str, Any]]) -> str:
    """All that one machine said."""
    machine = contents[0]["machine"]
    marked = " (simulated: a rehearsal)" if contents[0]["simulated"] else ""
    of = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    text = [
        f"## {machine['gpu']}, {machine['date']}{marked}",
        f"{machine['gpu_bytes'] / 2**20:,.0f} MiB, driver {machine['driver']}, CUDA "
        f"{machine['cuda']}, Python {machine['python']}, {machine['cores']} cores; {of}.",
    ]
    for content in contents:
        text += [f"### {content['part']}", content["about"]]
        cases = content["cases"].items()
        rows = [{"case": name, **row} for name, case in cases for row in case["rows"]]
        badly = [{"case": name, **case} for name, case in cases if case["ended"] != "ok"]
        found = [(t, [r for r in rows if r["kind"] == t.kind]) for t in TABLES]
        found = [(ENDED_BADLY, badly), *((t, of) for t, of in found if t.part == content["part"])]
        text += [markdown(table.columns, rows) for table, rows in found if rows]
    return "\n\n".join(text)


def right(case: dict[str, Any]) -> bool:
    """Whether a run has Inductor's values, to rounding or as far as Inductor has them again."""
    return case["ended"] == "ok" and all(
        row["difference"] <= max(ROUNDING, 4 * row["control_difference"])
        for row in case["rows"]
        if row["kind"] == "values"
    )


def read(results: Path) -> list[list[dict[str, Any]]]:
    """The files of each machine, the parts in the order of their value."""
    order = [table.part for table in TABLES]
    machines = []
    for folder in sorted(results.glob("*/")):
        files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
        machines.append(sorted(files, key=lambda content: order.index(content["part"])))
    return machines


def page(machines: list[list[dict[str, Any]]]) -> str:
    """The page, whole."""
    head = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").rstrip()
    state = "" if machines else NONE
    return "\n\n".join([head.replace("STATE", state), *map(section, machines)]) + "\n"


def sentence(machines: list[list[dict[str, Any]]]) -> str:
    """What the README says of the graph trees on a real GPU."""
    values = [c for contents in machines for c in contents if c["part"] == "values"]
    cases = [case for content in values for case in content["cases"].values()]
    cards = ", ".join(f"{m['gpu']} ({m['date']})" for m in (c["machine"] for c in values))
    text = MEASURED % (cards, len(cases), sum(map(right, cases))) if values else NOT_YET
    return textwrap.fill(text, 106, break_on_hyphens=False)


def write_kernel_tables(machines: list[list[dict[str, Any]]]) -> None:
    """Write what was measured of kernels, medians alone, for estimates of time: by GPU. Of a kernel
    that several runs measured, the last run's."""
    keys = {row["name"]: key for key, row in tomllib.loads(GPUS.read_text("utf-8")).items()}
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    parts = [c for contents in machines for c in contents if c["part"] == "kernels"]
    for content in (part for part in parts if not part["simulated"]):
        gpu = keys[content["machine"]["gpu"]]
        for row in (row for case in content["cases"].values() for row in case["rows"]):
            named = {name: value for name, value in row.items() if type(value) in (str, int)}
            if row["kind"] != "failed":
                tables.setdefault(gpu, {})[json.dumps(named)] = medians(row)
    for gpu, rows in tables.items():
        text = ",\n".join(map(json.dumps, rows.values()))
        (KERNEL_TABLES / f"{gpu}.json").write_text(f"[\n{text}\n]\n", "utf-8")


def medians(row: dict[str, Any]) -> dict[str, Any]:
    """A row with the median in the place of all samples."""
    left_out = ("per_second", "first_us", "at_s")
    kept = {name: value for name, value in row.items() if name not in left_out}
    for name, value in kept.items():
        if isinstance(value, dict):
            kept[name] = {"median": round(value["median"], 3)}
    return kept


def main(results: Path, page_file: Path, readme: Path) -> None:
    """Write the page, and the sentence between its marks."""
    machines = read(results)
    if results == RESULTS:
        write_kernel_tables(machines)
    page_file.write_text(page(machines), encoding="utf-8")
    begin, end = MARKS
    text = readme.read_text(encoding="utf-8")
    new = f"{begin}\n{sentence(machines)}\n{end}"
    readme.write_text(re.sub(f"{begin}.*?{end}", lambda _: new, text, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:] or (RESULTS, PAGE, README)))
