"""`bench init`: a configuration to begin with."""

import shlex
from pathlib import Path

import click

TEMPLATE = Path(__file__).with_name("init.toml")


@click.command("init", short_help="Write a commented configuration file.")
@click.argument("file", default="bench.toml")
def command(file: str) -> int:
    """Write FILE (default bench.toml), a commented configuration for 'bench run --config FILE'."""
    from harness.cli import _terminal
    from harness.data import files
    from harness.errors import UsageError

    path = Path(file)
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(TEMPLATE.read_text(encoding="utf-8").replace("bench.toml", shlex.quote(file)))
    except FileExistsError:
        raise UsageError(f"'{file}' exists and is left alone; name another file.") from None
    except OSError as error:
        if files.has_no_room(error):
            path.unlink(missing_ok=True)  # else the next call would leave the empty file alone
        raise files.refused(file, error) from None
    _terminal.say(f"{file} written; edit it, then: bench run --config {shlex.quote(file)}")
    return 0
