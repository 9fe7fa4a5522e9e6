"""`bench sender`: sends a share of a schedule for `bench run --senders` on another machine."""

import os
import stat

import click

from harness.errors import UsageError


@click.command("sender", short_help="Send for 'bench run --senders' on another machine.")
def command() -> None:
    """Send a share of a run for bench on another machine, which starts this command (--senders ssh:HOST,...).

    Standard input and output carry messages of 'bench run', not text.
    """
    from harness.runner.remote import calibration, sender

    kind = os.fstat(0).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise UsageError("'bench sender' needs a pipe as its standard input: 'bench run --senders ssh:HOST' starts it.")
    sender.main(calibration.serve)
