"""`bench theory`: closed forms of LLM serving, evaluated at every point of what is varied."""

import click

from harness.cli._options import answer_file, formats, option

_EPILOG = """
\b
Examples
  bench theory prefill:execution=80ms,speedup=1.6 --over rate=5,12
  bench theory kv:model=opt-66b --over link=25Gbps,800Gbps,600GBps
  bench theory slo:model=yi-34b,tp=2
"""


@click.command("theory", short_help="Analytical models of LLM serving, without a run.", epilog=_EPILOG)
@click.argument("spec", metavar="[NAME:KEY=VALUE,...]", required=False)
@option("--over", multiple=True, metavar="NAME=VALUES",
        help="Vary a parameter: rate=1,2,4, or batch=1:128:x2 (doubling); repeatable.")  # fmt: skip
@answer_file
@formats
@click.pass_context
def command(ctx: click.Context, spec: str | None, over: tuple[str, ...], out: str | None, form: str) -> int:
    """Evaluate the closed form NAME of LLM serving; some have a simulation beside it. Without NAME, list all forms.

    'bench explain theory.NAME' shows the parameters of a form with their units, and its source.
    """
    from harness.cli import _terminal
    from harness.cli.list import command as listed
    from harness.experiments.theory import evaluate

    if spec is None:
        return int(ctx.invoke(listed, kind="theory", form=form))
    _terminal.give(form, evaluate(spec, over), out)
    return 0
