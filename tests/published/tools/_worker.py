"""Answers rows with one tool, in the tool's own environment: a row of JSON a line in, an answer a line out."""

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path

ROW_S = 300
"""A row that takes longer ends the worker, and the tool is noted as without an answer for it."""


def main() -> None:
    """Load the file of the tool, which may print what it likes, and answer each line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.append(str(Path(sys.argv[1]).parent))  # what tools share, after the tool itself
    spec = importlib.util.spec_from_file_location("_tool", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for line in sys.stdin:
        signal.alarm(ROW_S)
        started_s = time.process_time()
        try:
            answer = tool.predict(json.loads(line))
        except Exception as error:  # noqa: BLE001  # whatever it raises, it has no answer
            answer = f"{type(error).__name__}: {str(error).strip()}"
        print(json.dumps([answer, time.process_time() - started_s]), file=answers, flush=True)


if __name__ == "__main__":
    main()
