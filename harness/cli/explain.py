"""`bench explain`: what a name means, whatever kind of name it is."""

import dataclasses
import inspect
import itertools
import textwrap
import typing
from typing import Any

import click

from harness import catalog, configs, registry
from harness.cli import _terminal
from harness.cli._options import formats
from harness.cli.list import OPTION, glossary, listed, names
from harness.errors import no_such
from harness.spec import defaults, types_of

_UNITS = {"_bytes_per_s": "bytes per second; 25Gbps, 600GBps", "_s": "seconds; 250ms, 60s, 5min", "_tokens": "tokens",
          "_rps": "requests per second", "_bytes": "bytes; 24GB, 80GiB", "_flops": "FLOP/s"}  # fmt: skip


_SCALES = {
    "_bytes_per_s": (1e9, "GB/s"),
    "_bytes": (2.0**30, "GiB"),
    "_flops": (1e12, "TFLOP/s"),
    "_ops": (1e12, "TOP/s"),
    "_w": (1.0, "W"),
}
_KINDS = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "NoneType": "none"}


@click.command("explain", short_help="Explain a preset, plug-in, metric, warning or term.")
@click.argument("name")
@formats
def command(name: str, form: str) -> int:
    """Explain NAME: a preset, a plug-in with its arguments, a model, a GPU, a metric, a warning (few-requests, ...) or
    a term (tpot, ...).

    A name that exists in several kinds is explained in each; KIND.NAME selects one (arrivals.gamma). Files are those
    of --workload and --model: mix.toml, ./config.json, models.FILE.toml, hardware.FILE.toml.
    """
    from workloads import catalog as workloads

    kind, dot, short = name.partition(".")
    if not dot or kind not in OPTION:
        kind, short = "", name
    slug = short.split(":")[0].lower().replace("_", "-")
    if kind in ("models", "hardware") and catalog.is_file(short):
        kinds, texts = [kind], [_about(kind, short)]
    elif short.partition(":")[0].endswith(".toml"):  # a preset of the user
        kinds, texts = ["presets"], [workloads.explain(short)]
    elif not kind and catalog.is_file(name):
        kinds, texts = ["models"], [_about("models", name)]
    else:
        kinds = [k for k in OPTION if kind in ("", k) and slug in names(k)]
        texts = [_about(k, slug) for k in kinds]
    terms, aliases, warnings = glossary()
    term = aliases.get(slug, slug)
    if not kind and term in terms and (term == slug or {*kinds} <= {"theory"}):
        texts.insert(0, _entry_of(term, "term", terms[term]))
    if not kind and slug in warnings:
        texts.insert(0, _entry_of(slug, "warning", warnings[slug]))
    if not texts and slug in OPTION:
        members = listed(slug)
        width = max(len(member) for member, _ in members)
        lines = [f"{slug} ({OPTION[slug]})", *(f"  {member:<{width}}  {text}" for member, text in members)]
        texts = ["\n".join(lines)]
    if not texts:
        candidates = {n for k in OPTION for n in names(k)} | {*terms, *warnings}
        error = no_such("term or plug-in", name, candidates)  # all names at once would fill the screen
        raise type(error)(f"{str(error).split(' Known: ')[0]} 'bench list' shows all names.")
    if form == "text":
        _terminal.say("\n\n".join(texts))
    else:  # each text begins with a line such as 'tpot (term)'
        from reports.document.rendered import table_report

        parts = [text.partition("\n") for text in texts]
        rows = [{"name": head, "explanation": textwrap.dedent(text).strip()} for head, _, text in parts]
        _terminal.show(form, table_report(name, rows))
    return 0


def _entry_of(name: str, what: str, text: str) -> str:
    return f"{name} ({what})\n{textwrap.fill(text, 98, initial_indent='  ', subsequent_indent='  ')}"


def _about(kind: str, name: str) -> str:
    if kind == "presets":
        from workloads import catalog as workloads

        text = workloads.explain(name).removeprefix(name).strip()
        return f"{name} (workload preset)\n{textwrap.indent(text, '  ')}"
    if kind == "configs":
        return f"{name} (configuration: --config {name})\n{textwrap.indent(configs.text_of(name) or '', '  ').rstrip()}"
    if kind in ("models", "hardware", "formats"):
        read = _of_file(kind, name) if catalog.is_file(name) else catalog.table(kind)[name]
        return f"{name} ({kind})\n{_entry({**read, **(_counted(name) if kind == 'models' else {})})}"
    return f"{name} ({kind}: {OPTION[kind]})\n{_plugin(kind, name)}"


def _of_file(kind: str, file: str) -> dict[str, Any]:
    """The figures that a file of a model or a GPU holds, as they are understood."""
    figures = catalog.figures(catalog.model(file) if kind == "models" else catalog.hardware(file))
    return {name: figure for name, figure in figures.items() if name != "sources"}


def _counted(name: str) -> dict[str, Any]:
    """What follows from the figures of a model."""
    m = catalog.model(name)
    return {
        "parameters": f"{catalog.parameters(m):,}, of which a token meets {catalog.active_parameters(m):,}",
        "weight_bytes": catalog.weight_bytes(m),
        "kv_bytes_per_token": f"{catalog.kv_bytes_per_token(m):,}",
    }


def _entry(entry: dict[str, Any]) -> str:
    width = max(len(key) for key in entry)
    lines = []
    for key, value in entry.items():
        source = f"   [{value['source']}]" if isinstance(value, dict) and "source" in value else ""
        figure = value.get("value", value) if isinstance(value, dict) else value
        if isinstance(figure, dict):
            figure = ", ".join(f"{part} {number}" for part, number in figure.items() if number is not None)
        lines.append(f"  {key:<{width}}  {_quantity(key, figure)}{source}")
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


def _system(name: str) -> str:
    """A published system: its text, its plug-ins, and its rows where a TOML file beside it has some."""
    from harness.experiments.reproduce import order, system

    entry = system(name)
    lines = [textwrap.indent(entry.about, "  ")]
    if entry.plugins:
        width = max(len(f"{kind} {short}") for kind, short in entry.plugins)
        lines += ["", "  plug-ins"]
        lines += [f"    {f'{kind} {short}':<{width}}  {registry.summary(kind, short)}" for kind, short in entry.plugins]
    if entry.rows:
        width = max(len(row.id) for row in entry.rows)
        lines += ["", f"  rows: bench reproduce {name}"]
        by_source = sorted(entry.rows, key=lambda row: (row.source, order(row)))
        for source, rows in itertools.groupby(by_source, key=lambda row: row.source):
            lines += [f"    {source}"]
            lines += [
                f"      {row.id:<{width}}  {row.published}{f' checked by {row.check}' if row.check else ''}"
                for row in rows
            ]
    return "\n".join(lines)


def _plugin(kind: str, name: str) -> str:
    if kind == "systems":
        return _system(name)
    plugin = registry.find(kind, name)
    lines = [textwrap.indent(registry.about(plugin), "  ")]
    if kind in ("metrics", "run_metrics"):  # they take no arguments
        from harness.api import Metric, RunMetric
        from harness.metrics.measure import row

        instance = registry.make(kind, name)
        metric = row(instance, Metric) if kind == "metrics" else row(instance, RunMetric)
        lines += ["", f"  unit: {metric.unit}", f"  better: {metric.better}"]
    elif arguments := _arguments(plugin):
        width = max(len(name) for name, _ in arguments)
        lines += ["", "  arguments", *(f"    {name:<{width}}  {text}" for name, text in arguments)]
    if usual := getattr(plugin, "mapped", None):  # of a plain table
        lines += ["", "  columns, recognised in any spelling (Prompt Tokens, promptTokens, usage.prompt_tokens)"]
        lines += [
            textwrap.fill(", ".join(columns), 98, initial_indent=f"    {name:<10}  ", subsequent_indent=" " * 16)
            for name, columns in usual.items()
            if columns
        ]
    return "\n".join(lines)


def _arguments(plugin: Any) -> list[tuple[str, str]]:
    if not (inspect.isfunction(plugin) or (isinstance(plugin, type) and dataclasses.is_dataclass(plugin))):
        return []
    hints = types_of(plugin)
    public = {name: default for name, default in defaults(plugin).items() if not name.startswith("_")}
    return [(name, _argument(name, default, hints[name])) for name, default in public.items()]


def _kind(hint: Any) -> str:
    """A type in words: 'whole number or none', 'one of a, b'."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, parts))}"
    if parts:
        return " or ".join(_kind(part) for part in parts)
    name = getattr(hint, "__name__", str(hint))
    return _KINDS.get(name, name)


def _argument(name: str, default: object, hint: Any) -> str:
    unit = next((text for end, text in _UNITS.items() if name.endswith(end)), "")
    if default is dataclasses.MISSING:
        default_text = "must be given"
    else:  # as a spec has it: none, true, 0.5
        default_text = f"default {str(default).lower() if default is None or isinstance(default, bool) else default}"
    return ", ".join(part for part in (_kind(hint), unit, default_text) if part)
