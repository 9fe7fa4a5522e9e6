"""Finds plug-ins by name: one file is one plug-in, found because it is there.

`arrivals/weibull.py` is `weibull`, because it holds the class whose lower-cased name is the file name without
underscores. A file that starts with `_` is not a member. Other packages register an entry point in the group
`bench.<kind>`. Listing imports nothing: names come from the folder, the one-line help from the file's docstring.
"""

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.errors import UsageError, no_such
from harness.spec import Spec, build, parse

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "sources": "workloads.sources",
        "arrivals": "workloads.arrivals",
        "lengths": "workloads.lengths",
        "sessions": "workloads.sessions",
        "content": "workloads.content",
        "readers": "workloads.readers",
        "backends": "backends",
        "policies": "backends.serving.policies",
        "routers": "backends.serving.routers",
        "kv": "backends.serving.kv",
        "admission": "backends.serving.admission",
        "latency": "backends.latency",
        "executors": "backends.executors",
        "metrics": "harness.metrics",
        "profiles": "harness.profiles",
        "reports": "reports",
        "results": "harness.results",
    }
)
OF_TRIALS = ("workloads.catalog", "backends.sim")
"""Modules that every simulated trial needs, for processes that import them before they are asked for one."""
SYSTEM = ("model", "hardware", "tp", "pp")
"""What a latency model and the system that it times must agree on."""
_WORD = MappingProxyType({"policies": "policy", "backends": "backend", "latency": "latency model", "metrics": "metric",
                          "profiles": "definition profile",
                          "readers": "trace reader", "routers": "router", "executors": "executor", "reports": "report",
                          "kv": "KV memory mode", "admission": "rule of admission"})  # fmt: skip


def folder(package: str) -> Path:
    """The directory of a package, found without importing it (nor its parents' contents)."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"Package '{top}' is not installed; install the project with 'pip install .'.")
    return Path(spec.submodule_search_locations[0]).joinpath(*rest)


def names(kind: str) -> list[str]:
    """Sorted names of all plug-ins of a kind, with dashes, entry points included."""
    files = folder(KINDS[kind]).glob("*.py")
    own = {f.stem.replace("_", "-") for f in files if not f.stem.startswith("_")}
    return sorted(own | set(_entry_points(kind)))


def summary(kind: str, name: str) -> str:
    """First sentence of a plug-in's docstring, read from its file without importing it."""
    path = folder(KINDS[kind]) / f"{name.replace('-', '_')}.py"
    if not path.exists():
        elsewhere = _source(kind, name)
        if elsewhere is None:
            return "(from another package)"
        path = elsewhere
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.split("\n\n")[0].replace("\n", " ")


def _source(kind: str, name: str) -> Path | None:
    """The file of a plug-in of another package, found without importing it; None where it is no Python file."""
    point = _entry_points(kind).get(name)
    try:
        spec = importlib.util.find_spec(point.module) if point is not None else None
    except ImportError:
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def find(kind: str, name: str) -> type[Any]:
    """The class of a plug-in. Raises UsageError with the nearest known name."""
    stem = name.replace("-", "_").lower()
    if (folder(KINDS[kind]) / f"{stem}.py").exists() and not stem.startswith("_"):
        module = importlib.import_module(f"{KINDS[kind]}.{stem}")
        wanted = stem.replace("_", "")
        for attribute in vars(module).values():
            own = isinstance(attribute, type) and attribute.__module__ == module.__name__
            if own and attribute.__name__.lower() == wanted:  # not rich.text.Text, imported by reports/text.py
                found: type[Any] = attribute
                return found
        raise TypeError(f"{module.__name__} holds no class named {wanted} (in any case)")
    points = _entry_points(kind)
    if name in points:
        loaded: type[Any] = points[name].load()
        return loaded
    raise no_such(_WORD.get(kind, kind), name, names(kind))


def make(kind: str, spec: str | Spec, **given: object) -> Any:
    """Build a plug-in from a spec; `given` are defaults for its fields that the spec overrides.

    But those of a latency model are the system whose steps it times: a spec of another one is refused, because memory
    and GPUs would be counted for the one and time for the other.
    """
    parsed = parse(spec) if isinstance(spec, str) else spec
    built = build(find(kind, parsed.name), parsed, **given)
    if kind == "latency":
        _same_system(built, parsed, given)
    return built


def _same_system(latency: Any, spec: Spec, system: Mapping[str, object]) -> None:
    """Raise UsageError where the latency model is that of another model, GPU or number of GPUs than `system`.

    Its own are its fields, or `measured_on` where it holds the measurements of one system.
    """
    measured: Mapping[str, object] = getattr(latency, "measured_on", {})
    own = {key: measured.get(key, getattr(latency, key, None)) for key in SYSTEM if key in system}
    apart = [key for key, value in own.items() if value is not None and _folded(value) != _folded(system[key])]
    if apart:
        what, other = (", ".join(f"{key}={of[key]}" for key in apart) for of in (own, system))
        short = Spec(spec.name, {key: value for key, value in spec.args.items() if key in SYSTEM}, spec.first)
        raise UsageError(
            f"The latency model '{short}' is for {what}, but the system has {other}; "
            f"give {' '.join(f'--{key} {own[key]}' for key in apart)}, or a latency model for {other}."
        )


def _folded(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _entry_points(kind: str) -> dict[str, Any]:
    from importlib.metadata import entry_points  # heavy: only where names are listed or one is unknown

    return {p.name: p for p in entry_points(group=f"bench.{kind}")}
