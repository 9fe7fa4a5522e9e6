"""`bench sender`: sends a share of a schedule for `bench run --senders` on another machine."""

import sys

import click

from harness.errors import UsageError


@click.command("sender", short_help="Send for 'bench run --senders' on another machine.")
def command() -> None:
    """Send a share of a run for bench on another machine, which starts this command (--senders ssh:HOST,...).

    Standard input and output carry messages of 'bench run', not text.
    """
    from harness.runner.remote import calibration, sender

    if sys.stdin.isatty():
        raise UsageError("'bench sender' is started by 'bench run --senders ssh:HOST'; it has no use on a terminal.")
    sender.main(calibration.serve)
