"""``memprof run`` against ``python``: what the script sees, and what its errors look like."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import files

ABOUT_MAIN = (
    "import sys\n"
    "print(__name__, __file__, __package__, __spec__ and __spec__.name, sys.argv, sys.path[0])\n"
    "print(type(__loader__).__name__)\n"
)
FAILING = (
    "def f(): return 1 / 0\n"
    "try:\n    f()\nexcept ZeroDivisionError as e:\n    raise RuntimeError('outer') from e\n"
)
PROGRAMS = {
    "script": ({"train.py": ABOUT_MAIN + FAILING}, ["train.py", "--lr", "1"]),
    "syntax error": ({"train.py": "x = 1\ndef f(:\n"}, ["train.py"]),
    "Ctrl+C": (
        {"train.py": f"import os\ndef f(): os.kill(os.getpid(), {int(signal.SIGINT)})\nf()\n"},
        ["train.py"],
    ),
    "package": (
        {
            "app/__init__.py": "",
            "app/__main__.py": ABOUT_MAIN + "from . import other\n",
            "app/other.py": FAILING,
        },
        ["-m", "app", "x"],
    ),
    "exit status": ({"train.py": "import sys\nsys.exit('a reason')\n"}, ["train.py"]),
}


def ended(command: list[str], folder: Path) -> tuple[int, str, str]:
    """Exit status, output and errors; without the frames of ``runpy``, which only ``python -m``
    shows."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MEMPROF_")}
    p = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return p.returncode, p.stdout, re.sub(r'  File "<frozen runpy>".*\n', "", p.stderr)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_script_sees_and_shows_what_it_does_under_python(program: str, tmp_path: Path) -> None:
    texts, arguments = PROGRAMS[program]
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    python = ended([sys.executable, *arguments], tmp_path)
    ours = ended([sys.executable, "-m", "memprof", "run", *arguments], tmp_path)

    assert python == ours
    assert bool(files(tmp_path)) == (program != "syntax error")


def test_run_decides_whatever_a_file_says(tmp_path: Path) -> None:
    (tmp_path / "memprof.toml").write_text("[memprof]\nenabled = false\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    status, out, err = ended([sys.executable, "-m", "memprof", "run", "train.py"], tmp_path)
    # THEN it tracks, and says that it was told otherwise and what to do
    assert (status, out) == (0, "trained\n")
    assert len(files(tmp_path)) == 1
    assert err.splitlines() == [
        f"memprof run: tracking, although {tmp_path / 'memprof.toml'} says enabled = false; "
        "start the script with python to run it without"
    ]
