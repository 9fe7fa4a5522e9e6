"""`bench explain`: what a name means, whatever kind of name it is."""

import dataclasses
import textwrap
import typing
from typing import Any

import click

_UNITS = {"_s": "seconds; 250ms, 60s, 5min", "_tokens": "tokens", "_rps": "requests per second",
          "_bytes": "bytes; 24GB, 80GiB", "_flops": "FLOP/s"}  # fmt: skip


_SCALES = {"_bytes_per_s": (1e9, "GB/s"), "_bytes": (2.0**30, "GiB"), "_flops": (1e12, "TFLOP/s")}
_KINDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "NoneType": "none"}


@click.command("explain", short_help="Explain a preset, plug-in, metric or term.")
@click.argument("name")
@click.option("--html", metavar="FILE", help="Also write pictures of a preset, of arrivals (gamma:cv=2) or of lengths.")
def command(name: str, html: str | None) -> int:
    """Explain NAME: a preset, a plug-in with its arguments, a model, a GPU, a metric or a term (tpot, ...).

    A name that several kinds have is explained for each; KIND.NAME chooses one (arrivals.gamma).
    """
    from harness import compose
    from harness.cli import _names, _terminal, _trace_tools
    from harness.errors import no_such

    _trace_tools.page_to_write(html)
    kind, dot, short = name.partition(".")
    if not dot or kind not in _names.kinds():
        kind, short = "", name
    wanted = short.split(":")[0].lower().replace("_", "-")
    if short.partition(":")[0].endswith(".toml"):  # a preset of the user
        kinds, found = ["presets"], [compose.explain_workload(short)]
    else:
        kinds = [k for k in _names.kinds() if kind in ("", k) and wanted in _names.names(k)]
        found = [_about(k, wanted) for k in kinds]
    terms, aliases = _names.glossary()
    term = aliases.get(wanted, wanted)
    if not kind and term in terms and (term == wanted or not found):
        found.insert(0, f"{term} (term)\n{textwrap.fill(terms[term], 98, initial_indent='  ', subsequent_indent='  ')}")
    if not found and wanted in _names.kinds():
        found = [_kind_of_names(wanted)]
    if not found:
        known = {n for k in _names.kinds() for n in _names.names(k)} | set(terms)
        error = no_such("name", name, known)  # all names at once would fill the screen
        raise type(error)(f"{str(error).split(' Known: ')[0]} 'bench list' shows all names.")
    _terminal.say("\n\n".join(found))
    if html is not None:
        _draw(html, kinds, short, "\n\n".join(found))
    return 0


def _draw(html: str, kinds: list[str], spec: str, text: str) -> None:
    """Write the page of what is drawn under this name: of the first of its kinds that draws something."""
    from harness.cli import _names, _trace_tools
    from harness.errors import UsageError

    if not kinds:
        raise UsageError(f"'{spec}' is a term, of which there is nothing to draw; leave out --html.")
    kind = next((k for k in kinds if k in _names.DRAWABLE), kinds[0])
    facts = _names.facts(kind, spec)
    _trace_tools.draw(html, {**facts, "texts": [*text.splitlines(), *facts.get("texts", ())]}, spec)


def _kind_of_names(kind: str) -> str:
    """The names of a kind, as 'bench list' has them."""
    from harness.cli import _names

    rows = _names.rows(kind)
    width = max(len(name) for name, _ in rows)
    return "\n".join([f"{kind} ({_names.OPTION[kind]})", *(f"  {name:<{width}}  {text}" for name, text in rows)])


def _about(kind: str, name: str) -> str:
    from harness import compose, configs
    from harness.cli import _names

    if kind == "presets":
        text = compose.explain_workload(name).removeprefix(name).strip()
        return f"{name} (workload preset)\n{textwrap.indent(text, '  ')}"
    if kind == "configs":
        return f"{name} (configuration: --config {name})\n{textwrap.indent(configs.text_of(name) or '', '  ').rstrip()}"
    if kind in ("models", "hardware"):
        return f"{name} ({kind})\n{_entry(_names.table(kind)[name])}"
    return f"{name} ({kind}: {_names.OPTION[kind]})\n{_plugin(kind, name)}"


def _entry(entry: dict[str, Any]) -> str:
    width = max(len(key) for key in entry)
    lines = []
    for key, value in entry.items():
        source = f"   [{value['source']}]" if isinstance(value, dict) and "source" in value else ""
        shown = value.get("value", value) if isinstance(value, dict) else value
        lines.append(f"  {key:<{width}}  {_quantity(key, shown)}{source}")
    return "\n".join(lines)


def _quantity(key: str, value: object) -> str:
    """A number with the unit that its key names: 2.04 TB/s, 312 TFLOP/s, 79.2 GiB."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        for end, (scale, unit) in _SCALES.items():
            if key.endswith(end):
                return f"{value / scale:.4g} {unit}"
    return str(value)


def _plugin(kind: str, name: str) -> str:
    from harness import registry

    found = registry.find(kind, name)
    lines = [textwrap.indent(registry.about(found), "  ")]
    if kind == "metrics":  # nobody builds one with arguments
        from harness.metrics.measure import row

        metric = row(registry.make(kind, name))
        lines += ["", f"  unit: {metric.unit}", f"  better: {metric.better}"]
    elif arguments := _arguments(found):
        width = max(len(name) for name, _ in arguments)
        lines += ["", "  arguments", *(f"    {name:<{width}}  {text}" for name, text in arguments)]
    return "\n".join(lines)


def _arguments(cls: Any) -> list[tuple[str, str]]:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return []
    hints = typing.get_type_hints(cls)
    shown = [f for f in dataclasses.fields(cls) if f.init and not f.name.startswith("_")]
    return [(f.name, _argument(f, hints[f.name])) for f in shown]


def _kind(hint: Any) -> str:
    """A type in words: 'whole number or none', 'one of a, b'."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, parts))}"
    if parts:
        return " or ".join(_kind(part) for part in parts)
    name = getattr(hint, "__name__", str(hint))
    return _KINDS.get(name, name)


def _argument(f: dataclasses.Field[Any], hint: Any) -> str:
    kind = _kind(hint)
    unit = next((text for end, text in _UNITS.items() if f.name.endswith(end)), "")
    if f.default is not dataclasses.MISSING:
        shown = str(f.default)  # as a spec has it: none, true, 0.5
        default = f"default {shown.lower() if f.default is None or isinstance(f.default, bool) else shown}"
    elif f.default_factory is not dataclasses.MISSING:
        default = f"default {f.default_factory()!r}"
    else:
        default = "must be given"
    return ", ".join(part for part in (kind, unit, default) if part)
