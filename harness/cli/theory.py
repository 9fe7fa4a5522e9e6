"""`bench theory`: closed forms of LLM serving, evaluated at every point of what is varied."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

import click

from harness.cli._options import Value, formats, option
from harness.errors import UsageError
from harness.removed import REMOVED

_EPILOG = """
\b
Examples
  bench theory prefill:execution=80ms,speedup=1.6 --over rate=5,12
  bench theory kv:model=opt-66b --over link=25Gbps,800Gbps,600GBps
  bench theory slo:model=yi-34b,tp=2
"""


def _answer_file(value: object, name: str) -> str:  # noqa: ARG001  # the message names the file
    from harness.cli import _terminal

    _terminal.check(str(value))
    return str(value)


@click.command(
    "theory", short_help="Analytical models of LLM serving, without a run.", epilog=_EPILOG,
    context_settings={"ignore_unknown_options": True},
)  # fmt: skip
@click.argument("spec", metavar="[NAME:KEY=VALUE,...]", required=False)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="")
@option("--over", multiple=True, metavar="NAME=VALUES",
        help="Vary a parameter: rate=1,2,4, or batch=1:128:x2 (doubling); repeatable.")  # fmt: skip
@option("--out", type=Value(_answer_file), metavar="FILE",
        help="Write to this file instead: .html, .md, .json, .csv or .txt.")  # fmt: skip
@formats
@click.pass_context
def command(
    ctx: click.Context, spec: str | None, words: tuple[str, ...], over: tuple[str, ...], out: str | None, form: str
) -> int:
    """Evaluate the closed form NAME of LLM serving; some have a simulation beside it. Without NAME, list all forms.

    'bench explain theory.NAME' shows the parameters of a form with their units, and its source.
    """
    from harness.cli import _terminal
    from harness.cli.list import command as listed
    from harness.experiments.theory import evaluate

    if words:
        if get_close_matches(words[0], [name for option in ctx.command.params for name in option.opts], cutoff=0.8):
            raise click.NoSuchOption(words[0], ctx=ctx)
        raise UsageError(_moved(str(spec), words))
    if spec is None:
        return int(ctx.invoke(listed, kind="theory", form=form))
    info = evaluate(spec, over)
    if out is None:
        _terminal.show(form, info)
    else:
        _terminal.put(info, out)
    return 0


def _moved(name: str, words: Iterable[str]) -> str:
    """Write options of a form, as earlier versions had them, as its parameters."""
    left = [*words]
    fixed: list[str] = []
    varied: list[str] = []
    option = left[0].partition("=")[0]
    while left:
        key, equals, value = left.pop(0).lstrip("-").partition("=")
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("-") else "true"
        value = re.sub(r"(\d+)\.\.(\d+)", r"\1:\2:x2", value)
        (varied if "," in value or ":x2" in value else fixed).append(f"{key}={value}")
    spec = f"{name}:{','.join(fixed)}" if fixed else name
    written = " --over ".join(["bench theory " + spec, *varied])
    return f"The option '{option}' was removed: {REMOVED['option of bench theory', '--KEY']}: '{written}'."
