"""`python -m harness` is `bench`."""

import os
import sys
from pathlib import Path

if not sys.flags.safe_path and str(Path(__file__).resolve().parents[1]) != os.path.realpath(sys.path[0]):
    del sys.path[0]  # the current folder: its files are no modules of bench

from harness.cli import main

if __name__ == "__main__":
    sys.exit(main())
