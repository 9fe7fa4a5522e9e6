"""`bench capacity`."""

from __future__ import annotations

import click

from harness.errors import UsageError


@click.command("capacity", short_help="Search the highest rate that keeps the SLO, with its interval.")
def command() -> int:
    """Search the highest rate that keeps the SLO, with its interval."""
    raise UsageError("bench capacity is not there yet.")
