"""`bench sweep`."""

from __future__ import annotations

import click

from harness.errors import UsageError


@click.command("sweep", short_help="Run over many rates, or any option: the goodput curve.")
def command() -> int:
    """Run over many rates, or any option: the goodput curve."""
    raise UsageError("bench sweep is not there yet.")
