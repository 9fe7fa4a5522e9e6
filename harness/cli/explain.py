"""`bench explain`: what a name means, whatever kind of name it is."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from typing import Any

import click

_UNITS = {"_s": "seconds; 250ms, 60s, 5min", "_tokens": "tokens", "_rps": "requests per second",
          "_bytes": "bytes; 24GB, 80GiB", "_flops": "FLOP/s"}  # fmt: skip


@click.command("explain", short_help="Explain a preset, plug-in, metric or term.")
@click.argument("name")
def command(name: str) -> int:
    """Explain NAME: a preset, a plug-in with its arguments, a model, a GPU, a metric or a term (tpot, ...).

    A name that several kinds have is explained for each; KIND.NAME chooses one (arrivals.gamma).
    """
    from harness.cli import _names
    from harness.errors import no_such

    kind, dot, short = name.partition(".")
    if not dot or kind not in _names.kinds():
        kind, short = "", name
    wanted = short.split(":")[0].lower().replace("_", "-")
    found = [_about(k, wanted) for k in _names.kinds() if kind in ("", k) and wanted in _names.names(k)]
    terms, aliases = _names.glossary()
    term = aliases.get(wanted, wanted)
    if not kind and term in terms and (term == wanted or not found):
        found.insert(0, f"{term} (term)\n{textwrap.fill(terms[term], 98, initial_indent='  ', subsequent_indent='  ')}")
    if not found:
        known = {n for k in _names.kinds() for n in _names.names(k)} | set(terms)
        raise _short(no_such("name", name, known))
    click.echo("\n\n".join(found))
    return 0


def _short(error: Exception) -> Exception:
    """All names at once would fill the screen."""
    return type(error)(f"{str(error).split(' Known: ')[0]} 'bench list' shows all names.")


def _about(kind: str, name: str) -> str:
    from harness import registry
    from harness.cli import _names

    if kind == "presets":
        return f"{name} (workload preset)\n{textwrap.indent(_names.catalog().explain(name).strip(), '  ')}"
    if kind in ("models", "hardware"):
        return f"{name} ({kind})\n{_entry(_names.table(kind)[name])}"
    return f"{name} ({kind}: {_names.OPTION[kind]})\n{_plugin(registry.find(kind, name))}"


def _entry(entry: dict[str, Any]) -> str:
    width = max(len(key) for key in entry)
    lines = []
    for key, value in entry.items():
        source = f"   [{value['source']}]" if isinstance(value, dict) and "source" in value else ""
        shown = value.get("value", value) if isinstance(value, dict) else value
        lines.append(f"  {key:<{width}}  {shown}{source}")
    return "\n".join(lines)


def _plugin(cls: type[Any]) -> str:
    module = inspect.getmodule(cls)
    docs = [inspect.getdoc(module), inspect.getdoc(cls)] if module else [inspect.getdoc(cls)]
    text = "\n\n".join(d for d in docs if d and not d.startswith(f"{cls.__name__}("))
    lines = [textwrap.indent(text, "  ")]
    facts = [(f, getattr(cls, f, None)) for f in ("unit", "better") if isinstance(getattr(cls, f, None), str)]
    if facts:
        lines += ["", *(f"  {key}: {value}" for key, value in facts)]
    arguments = _arguments(cls)
    if arguments:
        width = max(len(name) for name, _ in arguments)
        lines += ["", "  arguments", *(f"    {name:<{width}}  {text}" for name, text in arguments)]
    return "\n".join(lines)


def _arguments(cls: type[Any]) -> list[tuple[str, str]]:
    if not dataclasses.is_dataclass(cls):
        return []
    return [(f.name, _argument(f)) for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")]


def _argument(f: dataclasses.Field[Any]) -> str:
    kind = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
    unit = next((text for end, text in _UNITS.items() if f.name.endswith(end)), "")
    if f.default is not dataclasses.MISSING:
        default = f"default {f.default!r}"
    elif f.default_factory is not dataclasses.MISSING:
        default = f"default {f.default_factory()!r}"
    else:
        default = "must be given"
    return ", ".join(part for part in (kind, unit, default) if part)
