"""`bench list`: what can be named in options, with one line about each."""

import sys

import click

from harness.cli._options import formats


@click.command("list", short_help="List presets, models, GPUs and plug-ins.")
@click.argument("kind", required=False)
@formats
def command(kind: str | None, form: str) -> int:
    """List all names of one KIND (presets, models, hardware, policies, arrivals, ...), or of all kinds."""
    from harness.cli import _names, _terminal
    from harness.errors import no_such
    from reports.document.rendered import table_report

    kinds = _names.kinds()
    if kind is not None and kind not in kinds:
        raise no_such("kind", kind, kinds)
    if form != "text":
        found = [{"kind": one, "name": name, "about": about} for one in ([kind] if kind else kinds)
                 for name, about in _names.rows(one)]  # fmt: skip
        _terminal.show(form, table_report("Names", found))
        return 0
    lines: list[str] = []
    for shown in [kind] if kind is not None else kinds:
        rows = _names.rows(shown)
        lines.append(f"{shown} ({_names.OPTION[shown]})" if kind is None else f"{shown}: {_names.OPTION[shown]}")
        width = max((len(name) for name, _ in rows), default=0)
        room = 96 - width if sys.stdout.isatty() else None
        for name, text in rows:
            sentence = text.split(". ")[0].split(" Source:")[0].rstrip(".")
            if room is not None and len(sentence) > room:
                sentence = f"{sentence[: room - 3].rstrip()}..."
            lines.append(f"  {name:<{width}}  {sentence}".rstrip())
        if not rows:
            lines.append("  (none)")
        if kind is None:
            lines.append("")
    _terminal.say("\n".join([*lines, "More about one of them: bench explain NAME"]))
    return 0
