"""The benchmark's modules lie beside its tests and are run as scripts: this makes them importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
