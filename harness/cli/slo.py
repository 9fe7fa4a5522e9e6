"""`bench slo`."""

from __future__ import annotations

import click

from harness.errors import UsageError


@click.command("slo", short_help="Score stored runs again under other objectives.")
def command() -> int:
    """Score stored runs again under other objectives."""
    raise UsageError("bench slo is not there yet.")
