"""Files that nobody should hand to a reader."""

import sys
from pathlib import Path

# Profiles built by hand lie beside the tests of the profiler, which are no package.
sys.path.append(str(Path(__file__).parents[1] / "profiler"))
