"""`bench theory`: what follows from arithmetic alone, without a run."""

import importlib
from collections.abc import Mapping
from types import MappingProxyType

import click

from harness.errors import no_such

FORMS: Mapping[str, str] = MappingProxyType(
    {
        "slo": "SLOs as multiples of a decode step, after Sarathi-Serve.",
        "prefill": "TTFT of prefill as a queue; tensor or pipeline parallelism.",
        "kv": "Size of KV, its hand-off over links, and modes of memory.",
        "handoff": "Hand-off of KV in blocks or in one piece.",
        "knee": "Where batching stops to pay, prefill and decode.",
        "chunking": "What cutting a prompt into chunks costs.",
        "moe": "Tokens an expert needs, and what its traffic costs.",
        "ping-pong": "Attention and experts apart, with micro-batches between them.",
        "kv-reuse": "The link from which on stored KV beats computing it again.",
        "speculative": "Tokens per step and speed-up of speculative decoding.",
    }
)


class Forms(click.Group):
    """The group `bench theory`: an unknown name is answered with the nearest known one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """In the order of `FORMS`."""
        return [*FORMS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's
        """The form of that name, None when there is none."""
        if cmd_name not in FORMS:
            return None
        command: click.Command = importlib.import_module(f"harness.cli.theories.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but for an unknown name."""
        if args and args[0] not in FORMS and not args[0].startswith("-"):
            raise no_such("theory command", args[0], FORMS)
        return super().resolve_command(ctx, args)


_EPILOG = """
\b
For example
  bench theory slo --model yi-34b --hardware a100-80g --tp 2
  bench theory prefill --execution 80ms --speedup 1.6 --rate 5 --simulate
  bench theory kv --model opt-66b --length 512 --rate 10 --link 25Gbps,800Gbps,600GBps
  bench theory moe --gpu h800,h20
"""


@click.group(
    "theory", cls=Forms, invoke_without_command=True, short_help="What follows from arithmetic alone.", epilog=_EPILOG
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """What follows from arithmetic alone, without a run; some forms lay a simulation beside it."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
