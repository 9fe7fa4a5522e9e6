"""Prints the acceptance table or some of its rows, or writes docs/systems-rest.md (`make systems`).

    python tests/acceptance/run.py --only S05,E16             only these rows
    python tests/acceptance/run.py --out docs/systems-rest.md all rows; an hour, S58.aic alone 12 minutes

Exit code 1 if a row misses its band, 3 if a topic failed, 2 for wrong usage.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

FORMS = {".md": "markdown", ".json": "json", ".txt": "text"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the topics and print or write the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="IDS", help="these rows, such as S08,S05.b,E16")
    parser.add_argument("--topic", action="append", default=[], metavar="NAME", help="the rows of this topic")
    parser.add_argument("--data", metavar="DIR", help="public measurements; default shared/data above this project")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default one per core")
    parser.add_argument("--format", choices=[*FORMS.values()], default="text")
    parser.add_argument("--out", metavar="FILE", help=f"output file: {', '.join(FORMS)}")
    given = parser.parse_args(arguments)
    from harness.errors import UsageError

    try:
        return _run(given)
    except UsageError as error:
        _note(f"{error}")
        return 2


def _run(given: argparse.Namespace) -> int:
    from acceptance import page, table
    from harness.errors import UsageError
    from published import sources

    if given.out is not None and Path(given.out).suffix not in FORMS:
        raise UsageError(f"--out '{given.out}' must end in {', '.join(FORMS)}: the ending selects the format.")
    only = [one.strip() for one in given.only.split(",") if one.strip()]
    names = table.chosen(only, given.topic)
    data = sources.data_folder(given.data)
    if data is None:
        _note("No folder of public measurements; rows that need it are not run (--data names it).")
    command = f"python tests/acceptance/run.py --only {shlex.quote(given.only)}" if only else "make systems"
    info = table.answer(names, only, data, workers=given.workers, say=_note, command=command)
    form = given.format if given.out is None else FORMS[Path(given.out).suffix]
    text = json.dumps(info, indent=2, allow_nan=False) + "\n" if form == "json" else getattr(page, form)(info)
    if given.out is None:
        print(text.rstrip("\n"))
    else:
        Path(given.out).write_text(text, encoding="utf-8")
        print(f"{given.out}: {page.outcome(info)}")
    return int(info["exit_code"])


def _note(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
