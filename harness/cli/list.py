"""`bench list`: everything that has a name: plug-ins of all kinds, presets, configurations, models and GPUs."""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click

from harness import catalog, configs, registry
from harness.cli._options import formats
from harness.errors import no_such

OPTION: Mapping[str, str] = MappingProxyType(
    {
        "presets": "--workload NAME",
        "configs": "--config NAME",
        "backends": "--backend NAME",
        "models": "--backend sim --model NAME, or a config.json, a folder with one, or a TOML file",
        "hardware": "--backend sim --hardware NAME, or a TOML file",
        "formats": "formats = { experts = NAME } in the TOML file of a model",
        "latency": "--backend sim --latency NAME",
        "policies": "--policy NAME",
        "routers": "--router NAME",
        "kv": "--backend sim:kv=NAME, --backend engine:kv=NAME",
        "tiers": "--backend sim:tiers=NAME",
        "admission": "--backend sim:admission=NAME, --backend engine:admission=NAME",
        "predictors": "--policy gmax:predictor=NAME",
        "caches": "--response-cache NAME",
        "executors": "executes the batches of the engine",
        "systems": "bench reproduce NAME",
        "arrivals": "--arrivals NAME",
        "lengths": "--lengths NAME",
        "sessions": "--sessions NAME",
        "content": "--content NAME",
        "readers": "--trace FILE --reader NAME",
        "metrics": "--slo NAME=SECONDS",
        "run_metrics": "in the summary of every run",
        "profiles": "bench slo RUN --profile NAME",
        "reports": "bench report --format NAME",
        "results": "bench report FILE, bench slo FILE, bench compare FILE FILE",
        "theory": "bench theory NAME:key=value,...",
    }
)
"""Kind -> how its members are used, in the order in which the kinds are shown."""
_TABLES = ("models", "hardware", "formats")
"""Kinds whose members are entries of a table of `harness.catalog`."""


def glossary() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Terms with their explanations, other words for them, and the codes of warnings and reasons with theirs."""
    data = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
    return data["terms"], data["aliases"], data["warnings"]


def names(kind: str) -> list[str]:
    if kind == "presets":
        from workloads import catalog as workloads

        return workloads.presets()
    if kind == "configs":
        return configs.names()
    if kind in _TABLES:
        return sorted(catalog.table(kind))
    return registry.names(kind)


def listed(kind: str) -> list[tuple[str, str]]:
    """(name, one line about it) of a kind."""
    if kind == "presets":
        from workloads import catalog as workloads

        texts = {name: tomllib.loads(workloads.preset_text(name)).get("about", "") for name in names(kind)}
        return [(name, " ".join(str(about).split())) for name, about in texts.items()]
    if kind == "configs":
        return [(name, configs.about(name)) for name in names(kind)]
    if kind in _TABLES:
        return [
            (name, str(entry.get("title") or entry.get("source") or entry["about"]))
            for name, entry in catalog.table(kind).items()
        ]
    return [(name, registry.summary(kind, name)) for name in names(kind)]


@click.command("list", short_help="List presets, models, GPUs and plug-ins.")
@click.argument("kind", required=False)
@formats
def command(kind: str | None, form: str) -> int:
    """List all names of one KIND (presets, models, hardware, policies, arrivals, ...), or of all kinds."""
    from harness.cli import _terminal
    from reports.document.rendered import table_report

    if kind is not None and kind not in OPTION:
        raise no_such("kind", kind, OPTION)
    kinds = [kind] if kind is not None else [*OPTION]
    if form != "text":
        rows = [{"kind": group, "name": name, "about": about} for group in kinds for name, about in listed(group)]
        _terminal.show(form, table_report("Names", rows))
        return 0
    lines: list[str] = []
    for group in kinds:
        members = listed(group)
        lines.append(f"{group} ({OPTION[group]})" if kind is None else f"{group}: {OPTION[group]}")
        width = max((len(name) for name, _ in members), default=0)
        room = 96 - width if sys.stdout.isatty() else None
        for name, text in members:
            sentence = text.split(". ")[0].split(" Source:")[0].rstrip(".")
            if room is not None and len(sentence) > room:
                sentence = f"{sentence[: room - 3].rstrip()}..."
            lines.append(f"  {name:<{width}}  {sentence}".rstrip())
        if not members:
            lines.append("  (none)")
        if kind is None:
            lines.append("")
    _terminal.say("\n".join([*lines, "More about one of them: bench explain NAME"]))
    return 0
