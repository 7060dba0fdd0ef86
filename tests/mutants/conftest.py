"""The scripts that these tests are about lie beside them and are run as scripts: this makes them importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
