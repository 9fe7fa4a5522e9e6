"""`bench compare`."""

from __future__ import annotations

import click

from harness.errors import UsageError


@click.command("compare", short_help="Compare a candidate with a baseline: paired, with a verdict.")
def command() -> int:
    """Compare a candidate with a baseline: paired, with a verdict."""
    raise UsageError("bench compare is not there yet.")
