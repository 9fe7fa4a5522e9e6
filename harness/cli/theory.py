"""`bench theory`."""

from __future__ import annotations

import click

from harness.errors import UsageError


@click.command("theory", short_help="Closed forms beside the simulation.")
def command() -> int:
    """Closed forms beside the simulation."""
    raise UsageError("bench theory is not there yet.")
