"""The pictures in the documentation are what its script draws from its profile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.support.json_text import to_json

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_pictures_are_drawn_from_the_profile(tmp_path: Path) -> None:
    profile = PICTURES / "explained.memprof"
    subprocess.run(
        [sys.executable, str(PICTURES / "draw.py"), str(profile), str(tmp_path)], check=True
    )
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == sorted(p.name for p in PICTURES.glob("*.svg"))
    for name in names:
        drawn = (tmp_path / name).read_text()
        assert drawn == (PICTURES / name).read_text(), f"{name}: run docs/pictures/draw.py"
        ElementTree.fromstring(drawn)
        assert len(drawn) < 40_000


def test_the_profile_tells_nothing_of_the_machine_it_is_from() -> None:
    profile = read_profile(PICTURES / "explained.memprof")
    text = to_json(profile).decode()
    assert '"/' not in text
    assert profile.process is None
    assert profile.machine.cpu == ""
