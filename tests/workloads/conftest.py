"""Makes the programs in `tools/` importable that made the figures of lengths and arrivals."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
