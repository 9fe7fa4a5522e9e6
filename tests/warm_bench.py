"""`bench` in processes that need no imports: it loads what commands load once, then forks a child for each.

A line of JSON on standard input asks for a command (arguments, folder, files for its standard output and error); the
answer on standard output is its exit code. tests/conftest.py starts it, once for each process of the tests.
"""

import json
import os
import sys


def main() -> None:
    import aiohttp.web  # noqa: F401
    import jinja2  # noqa: F401
    import pandas as pd  # noqa: F401
    import plotly.graph_objects as go
    import pyarrow.parquet  # noqa: F401
    import rich.table  # noqa: F401
    import scipy.optimize
    import scipy.stats  # noqa: F401

    from harness.cli import main as bench

    go.Figure(go.Scatter(x=[0])).to_dict()  # loads what plotly loads late
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        wanted = json.loads(line)
        if child := os.fork():
            answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
            answers.flush()
            continue
        answers.close()
        os.setsid()
        os.chdir(wanted["folder"])
        for number, name in ((0, os.devnull), (1, wanted["stdout"]), (2, wanted["stderr"])):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), number)
        sys.argv = ["bench", *wanted["arguments"]]
        sys.exit(bench())


if __name__ == "__main__":
    main()
