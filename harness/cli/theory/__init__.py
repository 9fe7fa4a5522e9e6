"""`bench theory`: what follows from arithmetic alone, without a run."""

import click

from harness.cli._commands import Commands

FORMS = {
    "slo": "decode:slo", "prefill": "prefill:prefill", "kv": "kv:kv", "handoff": "kv:handoff", "knee": "decode:knee",
    "chunking": "prefill:chunking", "moe": "moe:moe", "experts": "moe:experts", "ping-pong": "moe:ping_pong",
    "afd": "moe:afd", "kv-reuse": "kv:kv_reuse", "speculative": "decode:speculative", "weights": "kernels:weights",
    "attention": "kernels:attention",
}  # fmt: skip
"""Name -> module of this folder, and the command in it."""
_EPILOG = """
\b
Examples
  bench theory slo --model yi-34b --hardware a100-80g --tp 2
  bench theory prefill --execution 80ms --speedup 1.6 --rate 5 --simulate
  bench theory kv --model opt-66b --length 512 --rate 10 --link 25Gbps,800Gbps,600GBps
  bench theory moe --gpu h800,h20
"""


@click.group(
    "theory", cls=Commands, what="theory command", modules={n: f"{__name__}.{place}" for n, place in FORMS.items()},
    invoke_without_command=True, short_help="Analytical models of LLM serving, without a run.", epilog=_EPILOG,
)  # fmt: skip
@click.pass_context
def command(ctx: click.Context) -> None:
    """Evaluate analytical models of LLM serving, without a run; some can be compared with a simulation."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
