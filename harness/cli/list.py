"""`bench list`: what can be named in options, with one line about each."""

from __future__ import annotations

import click


@click.command("list", short_help="List presets, models, GPUs and plug-ins.")
@click.argument("kind", required=False)
def command(kind: str | None) -> int:
    """List everything of one KIND (presets, models, hardware, policies, arrivals, ...), or of all kinds."""
    from harness.cli import _names
    from harness.errors import no_such

    kinds = _names.kinds()
    if kind is not None and kind not in kinds:
        raise no_such("kind", kind, kinds)
    for shown in [kind] if kind is not None else kinds:
        rows = _names.rows(shown)
        click.echo(f"{shown} ({_names.OPTION[shown]})" if kind is None else f"{shown}: {_names.OPTION[shown]}")
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            click.echo(f"  {name:<{width}}  {_short(text, 96 - width)}".rstrip())
        if not rows:
            click.echo("  (none)")
        if kind is None:
            click.echo()
    click.echo("More about one of them: bench explain NAME")
    return 0


def _short(text: str, width: int) -> str:
    text = text.split(". ")[0].split(" Source:")[0].rstrip(".")
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."
