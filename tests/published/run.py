"""The simulator beside runs of real systems whose requests are public; `leaderboard.py` has those of fixed concurrency.

    python tests/published/run.py apex-h100                       measured beside simulated, and the targets
    python tests/published/run.py --out published.html            every source
    python tests/published/run.py distserve-a100 --tables FOLDER  its tables, for bench validate --against FILE.toml

Exit code 1 where a target is missed, 2 for wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison with each source, or write it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sources; default all")
    parser.add_argument("--data", metavar="DIR", help="public measurements; default shared/data above this project")
    parser.add_argument("--format", choices=["text", "markdown", "json"], default="text")
    parser.add_argument("--out", metavar="FILE", help="write it there instead: .html, .md, .json or .txt")
    parser.add_argument("--tables", metavar="DIR", help="write the tables of the sources there, and compare nothing")
    given = parser.parse_args(arguments)
    from harness.errors import BenchError

    try:
        return _executed(given)
    except BenchError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _executed(given: argparse.Namespace) -> int:
    from harness.cli import _terminal
    from harness.errors import UsageError, no_such
    from harness.experiments.validate import answer
    from published import sources

    for name in given.names:
        if name not in sources.SOURCES:
            raise no_such("source of measurements", name, sources.SOURCES)
    data = sources.data_folder(given.data)
    if data is None:
        raise UsageError("The public measurements are not here; name their folder with --data DIR.")
    if given.tables is not None:
        Path(given.tables).mkdir(parents=True, exist_ok=True)
        for name in given.names or sources.SOURCES:
            for path in sources.SOURCES[name].convert(data, Path(given.tables)):
                print(path)
        return 0
    if given.out is not None:
        _terminal.answer_file(given.out)
    found = [sources.compare(name, data) for name in given.names or sources.SOURCES]
    info = answer.answer(found, " ".join(["python tests/published/run.py", *given.names]))
    _terminal.give(given.format, info, given.out)
    return info.exit_code


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
