"""Runs the scripts of this folder and writes docs/gallery.md: report and code of each.

    make.py PYTHON SIMULATED_PYTHON [NUMBER...]

Both have memprof; the torch of the second is the CUDA build, which ``memprof simulate`` needs. With
numbers only these are run, and what others printed is taken from the page that is there.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gallery.md"
HEAD = """# Gallery: ten findings

Each is a real run of the script below it, on a machine with two processor cores and no GPU:
compiled code on the CPU, or a CUDA script on the [simulated device](simulated-device.md).
`make gallery` runs them and writes this page.
"""
FINDING = """
## {title}

{text}
<!-- not run: make gallery runs it -->
```bash
{command}
```

```text
{report}
```

<details><summary>{name}</summary>

<!-- not run: make gallery runs it -->
```python
{code}
```

</details>
"""


def finding(script: Path) -> dict[str, str]:
    """Title, text, command and code of a script, by its docstring."""
    source = script.read_text()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    title, _, rest = docstring.partition("\n\n")
    text, _, command = f"\n{rest}".rpartition("\n    ")
    code = source.partition('"""\n\n')[2].strip()
    text = f"{text.strip()}\n" if text.strip() else ""
    return {"name": script.name, "title": title, "text": text, "command": command, "code": code}


def report(command: str, python: Path, folder: str) -> str:
    """Output of a command, standard error left out."""
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    print(f"$ {command}", flush=True)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not done.stdout.strip():
        raise SystemExit(f"{command}: printed nothing, exit status {done.returncode}")
    return done.stdout.strip()


def main() -> None:
    here, simulated, *numbers = sys.argv[1:]
    before = dict(
        re.findall(r"```bash\n(.*)\n```\n\n```text\n((?s:.*?))\n```", PAGE.read_text())
        if PAGE.exists()
        else []
    )
    page = [HEAD]
    for script in sorted(HERE.glob("[0-9]*.py")):
        found = finding(script)
        if numbers and script.name[:2] not in numbers:
            found["report"] = before[found["command"]]
        else:
            needs_cuda = "memprof simulate" in found["command"] or "memprof fit" in found["command"]
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, script.name).write_text(script.read_text())
                python = Path(simulated if needs_cuda else here).absolute()
                found["report"] = report(found["command"], python, folder)
        page.append(FINDING.format(**found))
    PAGE.write_text("".join(page))


if __name__ == "__main__":
    main()
