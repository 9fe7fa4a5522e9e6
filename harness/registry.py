"""Finds plug-ins by name: a file, a class or a row is one plug-in, found because it is there.

`arrivals/closed.py` is `closed`, because it holds the class whose lower-cased name is the file name without
underscores. A file that starts with `_` is not a member. Where plug-ins of a kind are short, `builtin.py` in its folder
holds several: each public class (`ReserveMax` is `reserve-max`), and each row of the tuple `ROWS`, a dataclass with
`name` and `about`. Where they are data, each key of `KIND.toml` is one, and `_rows.py` beside it makes the class.
A published system is one file in `backends/systems/` with plug-ins of several kinds, each a class that ends with its
kind: in `llumnix.py` the class `FreenessRouter` is the router `freeness`. Each public function that returns `list[Row]`
is a closed form: in `mooncake.py` the function `kv_reuse` is the form `kv-reuse`.
Other packages register an entry point in the group `bench.<kind>`: a class, or the module of a published system.
Listing imports nothing: names come from the folder, the one-line help from docstrings and `about`.
"""

import ast
import importlib
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.api import MeasuredOn
from harness.errors import UsageError, no_such
from harness.spec import Spec, build, convert, parse, source_of, types_of

SYSTEMS = "backends.systems"
"""The package of published systems."""
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
        "tiers": "backends.serving.tiers",
        "admission": "backends.serving.admission",
        "predictors": "backends.serving.predictors",
        "latency": "backends.latency",
        "caches": SYSTEMS,
        "executors": "backends.executors",
        "systems": SYSTEMS,
        "metrics": "harness.metrics.definitions",
        "run_metrics": "harness.metrics.of_run",
        "profiles": "harness.metrics.profiles",
        "reports": "reports",
        "results": "harness.experiments.imports",
        "theory": SYSTEMS,
    }
)
_KIND_OF_SUFFIX = MappingProxyType({
    "Policy": "policies", "Router": "routers", "Kv": "kv", "Admission": "admission", "Predictor": "predictors",
    "Latency": "latency", "Tier": "tiers", "Cache": "caches",
})  # fmt: skip
_IN_SYSTEM = re.compile(
    rf"^(?:class|def) (?P<name>[A-Za-z]\w*?)(?:(?P<suffix>{'|'.join(_KIND_OF_SUFFIX)})\b|\([^()]*\) -> list\[Row\]:)",
    re.MULTILINE,
)
FORMS = "theory"
"""The kind whose plug-ins are functions in the files of systems: closed forms."""
SYSTEM = ("model", "hardware", "tp", "pp", "dp", "ep")
"""What a latency model and the system that it times must agree on."""
_WORD = MappingProxyType({"policies": "policy", "backends": "backend", "latency": "latency model", "metrics": "metric",
                          "run_metrics": "metric of a run", "profiles": "definition profile",
                          "readers": "trace reader", "routers": "router", "executors": "executor", "reports": "report",
                          "kv": "KV memory mode", "tiers": "tier of KV memory", "admission": "rule of admission",
                          "predictors": "length predictor", "caches": "response cache", "systems": "published system",
                          "theory": "closed form"})  # fmt: skip


@cache
def folder(package: str) -> Path:
    """The directory of a package, found without importing it (nor its parents' contents)."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise UsageError(f"Package '{top}' is not installed; install the project with 'pip install .'.")
    path, bundled = Path(spec.origin), Path(__file__).parents[1] / top
    if path.parent != bundled and bundled.exists():
        raise UsageError(
            f"'{path}' hides the package '{top}' of bench; rename it, or install bench in an environment of its own."
        )
    return path.parent.joinpath(*rest)


def names(kind: str) -> list[str]:
    """Sorted names of all plug-ins of a kind, with dashes, entry points included."""
    in_systems = (name for of_kind, name in _in_systems() if of_kind == kind)
    return sorted({*_files(kind), *_together(kind, KINDS[kind]), *_entry_points(kind), *in_systems})


def _files(kind: str) -> dict[str, Path]:
    """The files that hold one plug-in each, by its name."""
    files = () if kind in (FORMS, "caches") else folder(KINDS[kind]).glob("*.py")
    return {file.stem.replace("_", "-"): file for file in files if _is_member(file.stem)}


def _systems() -> Mapping[str, tuple[str, Path]]:
    """Module and file of each published system by its name, those of other packages included."""
    others = {name: (point.module, _source("systems", name)) for name, point in _entry_points("systems").items()}
    return {
        **{name: (module, file) for name, (module, file) in others.items() if file is not None},
        **{name: (f"{SYSTEMS}.{file.stem}", file) for name, file in _files("systems").items()},
    }


def plugins_of(system: str) -> list[tuple[str, str]]:
    """(kind, name) of the plug-ins of a published system, in the order of its file."""
    return [plugin for plugin, (name, _) in _in_systems().items() if name == system]


@cache
def _in_systems() -> Mapping[tuple[str, str], tuple[str, str]]:
    """(system, class or function) of each plug-in in a system's file by (kind, name), found without importing any."""
    return {
        (_KIND_OF_SUFFIX.get(match["suffix"], FORMS), _dashed(match["name"])): (
            system, match["name"] + (match["suffix"] or "")
        )
        for system, (_, file) in sorted(_systems().items())
        for match in _IN_SYSTEM.finditer(file.read_text(encoding="utf-8"))
    }  # fmt: skip


def summary(kind: str, name: str) -> str:
    """First sentence of the documentation of a plug-in, read from its file without importing it."""
    if name in (files := _files(kind)):
        return _first_paragraph(_docstring(files[name]))
    if (kind, name) in _in_systems():
        system, plugin = _in_systems()[kind, name]
        return _first_paragraph(_docstrings_in(_systems()[system][1])[plugin])
    listed = _together(kind, KINDS[kind]).get(name)
    if listed is not None:
        return _first_paragraph(listed)
    elsewhere = _source(kind, name)
    return "(from another package)" if elsewhere is None else _first_paragraph(_docstring(elsewhere))


def about(plugin: Any) -> str:
    """The documentation of a plug-in: the `about` of a row, else the docstrings of its class and of its own file.

    Those of a published system say first what the plug-in does, then what the system is.
    """
    if not isinstance(plugin, type):
        return inspect.cleandoc(inspect.getdoc(plugin) or "" if inspect.isfunction(plugin) else plugin.about)
    of_file, of_class = _docstrings(plugin)
    docs = [of_class, of_file] if _is_of_system(plugin) else [None if _is_shared(plugin) else of_file, of_class]
    return "\n\n".join(d for d in docs if d and not d.startswith(f"{plugin.__name__}("))  # not what dataclass writes


def _docstrings(plugin: type[Any]) -> tuple[str | None, str | None]:
    """Of its file and of the class itself; of a compiled one from its source."""
    if (source := source_of(plugin)) is None:
        return inspect.getdoc(inspect.getmodule(plugin)), inspect.getdoc(plugin)
    return ast.get_docstring(source[0]), ast.get_docstring(source[1])


def name_of(made: object) -> str:
    """The name of the plug-in that an object is one of."""
    cls = type(made)
    stem = cls.__module__.rpartition(".")[2]
    if _is_of_system(cls):
        return _dashed(cls.__name__.removesuffix(next(end for end in _KIND_OF_SUFFIX if cls.__name__.endswith(end))))
    return _dashed(cls.__name__) if _is_shared(cls) else stem.replace("_", "-")


def _is_of_system(cls: type[Any]) -> bool:
    """Whether a class stands in the file of a published system, here or in another package, which its name says."""
    package = cls.__module__.rpartition(".")[0]
    return cls.__name__.endswith((*_KIND_OF_SUFFIX,)) and (package == SYSTEMS or package not in KINDS.values())


def _is_shared(cls: type[Any]) -> bool:
    """Whether a class stands in one file with other plug-ins."""
    package, _, stem = cls.__module__.rpartition(".")
    return package in KINDS.values() and not _is_member(stem)


def _is_member(stem: str) -> bool:
    """Whether a file of this name holds one plug-in and nothing else."""
    return not stem.startswith("_") and stem != "builtin"


@cache
def _together(kind: str, package: str) -> Mapping[str, str]:
    """Text of the plug-ins of a kind that share a file by their names, without importing it."""
    file = folder(package) / "builtin.py"
    texts = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else ():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            texts[_dashed(node.name)] = ast.get_docstring(node) or ""
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ROWS":
            for row in getattr(node.value, "elts", ()):
                literals = {k.arg: str(k.value.value) for k in row.keywords if isinstance(k.value, ast.Constant)}
                texts[_of_row(literals["name"])] = inspect.cleandoc(literals["about"])
    return texts | {name: inspect.cleandoc(entry["about"]) for name, entry in _table(kind, package).items()}


@cache
def _table(kind: str, package: str) -> Mapping[str, Any]:
    file = folder(package) / f"{kind}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _dashed(name: str) -> str:
    """The plug-in of a class or function: `ReserveMax` is `reserve-max`, `kv_reuse` is `kv-reuse`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", name).lower()


def _of_row(name: str) -> str:
    """The plug-in of a row: `ttft_sent` is `ttft-sent`, `vllm-0.32` is `vllm-0-32`."""
    return name.replace("_", "-").replace(".", "-")


@cache
def _docstrings_in(path: Path) -> Mapping[str, str]:
    """The docstrings of the classes and functions of a file by name."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body
    return {n.name: ast.get_docstring(n) or "" for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _first_paragraph(text: str) -> str:
    return text.split("\n\n")[0].replace("\n", " ")


def _source(kind: str, name: str) -> Path | None:
    """The file of a plug-in of another package, found without importing it; None where it is no Python file."""
    point = _entry_points(kind).get(name)
    if point is None:
        return None
    top, *rest = point.module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # that of a module within it would run the packages around it
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin.endswith(".py") else None
    files = [Path(place, *rest) for place in spec.submodule_search_locations or ()]
    sources = (source for file in files for source in (file.with_suffix(".py"), file / "__init__.py"))
    return next(filter(Path.is_file, sources), None)


@cache
def find(kind: str, name: str) -> Any:
    """The class of a plug-in, its row, or the module of a system. Raises UsageError with the nearest known name."""
    package = KINDS[kind]
    dashed = name.replace("_", "-").lower()
    if dashed in _files(kind):
        stem = dashed.replace("-", "_")
        module = importlib.import_module(f"{package}.{stem}")
        if package == SYSTEMS:
            return module
        class_name = stem.replace("_", "")
        for attribute in vars(module).values():
            if _is_own(attribute, module) and attribute.__name__.lower() == class_name:
                return attribute
        raise TypeError(f"{module.__name__} holds no class named {class_name} (in any case)")
    if (folder(package) / "builtin.py").exists():
        module = importlib.import_module(f"{package}.builtin")
        for row in getattr(module, "ROWS", ()):
            if _of_row(row.name) == dashed:
                return row
        for attribute in vars(module).values():
            if _is_own(attribute, module) and _dashed(attribute.__name__) == dashed:
                return attribute
    if (kind, dashed) in _in_systems():
        system, plugin = _in_systems()[kind, dashed]
        return getattr(importlib.import_module(_systems()[system][0]), plugin)
    if dashed in _table(kind, package):
        return importlib.import_module(f"{package}._rows").plugin(dashed)
    points = _entry_points(kind)
    if name in points:
        return points[name].load()
    raise no_such(_WORD.get(kind, kind), name, names(kind))


def _is_own(attribute: Any, module: Any) -> bool:
    """Whether a module holds the plug-in itself: not rich.text.Text, imported by reports/text.py."""
    return isinstance(attribute, type) and attribute.__module__ == module.__name__


def make(kind: str, spec: str | Spec, **given: object) -> Any:
    """Build a plug-in from a spec; `given` are defaults for its fields that the spec overrides.

    But those of a latency model are the system whose steps it times: a spec of another one is refused, because memory
    and GPUs would be counted for the one and time for the other. A backend takes from the spec of its latency model
    what it is not given of the system.
    """
    parsed = parse(spec) if isinstance(spec, str) else spec
    plugin = find(kind, parsed.name)
    if kind == "backends":
        given = _with_system(plugin, parsed, given)
    if not isinstance(plugin, type):
        if parsed.args or parsed.first is not None:
            raise UsageError(f"'{parsed}': {parsed.name} takes no arguments.")
        return plugin
    built: Any = build(plugin, parsed, **given)
    if kind == "latency":
        _same_system(built, parsed, given)
    return built


def system_of(latency: Any) -> dict[str, object]:
    """The fields of a latency model that name the system which it times, by name; constants have none."""
    return {field.name: getattr(latency, field.name) for field in fields(latency) if field.name in SYSTEM}


def system_in(latency: str | Spec) -> dict[str, str]:
    """What the spec of a latency model itself gives of the system that it times, by name."""
    parsed = parse(latency) if isinstance(latency, str) else latency
    plugin = find("latency", parsed.name)
    arguments = {key.replace("-", "_"): value for key, value in parsed.args.items()}
    if parsed.first is not None and isinstance(plugin, type):
        arguments.setdefault(fields(plugin)[0].name, parsed.first)
    return {key: arguments[key] for key in SYSTEM if key in arguments}


def _with_system(backend: Any, spec: Spec, given: Mapping[str, object]) -> dict[str, object]:
    """`given`, and what the spec of the latency model names: of replicas alike all, of prefill and decode the model."""
    arguments = {key.replace("-", "_"): value for key, value in spec.args.items()}
    latency = arguments.get("latency", given.get("latency"))
    if latency is None or not isinstance(backend, type):
        return dict(given)
    disaggregated = any((arguments.get(side) or given.get(side)) is not None for side in ("prefill", "decode"))
    hints = types_of(backend)
    inherited = {key: value for key, value in system_in(str(latency)).items() if key in hints and key not in arguments}
    first = fields(backend)[0].name if spec.first is not None else None
    return {
        **{
            key: convert(value, hints[key], key, str(latency))
            for key, value in inherited.items()
            if key != first and not (disaggregated and key != "model")
        },
        **given,
    }


def _same_system(latency: Any, spec: Spec, system: Mapping[str, object]) -> None:
    """Raise UsageError where the latency model is that of another model, GPU or number of GPUs than `system`.

    Its own are its fields, or `measured_on` where it holds the measurements of one system.
    """
    model_facts = system_of(latency) | dict(latency.measured_on if isinstance(latency, MeasuredOn) else {})
    timed = {key: model_facts.get(key) for key in SYSTEM if key in system}
    differing = [key for key, value in timed.items() if value is not None and _folded(value) != _folded(system[key])]
    if differing:
        what, other = (", ".join(f"{key}={facts[key]}" for key in differing) for facts in (timed, system))
        short = Spec(spec.name, {key: value for key, value in spec.args.items() if key in SYSTEM}, spec.first)
        raise UsageError(
            f"The latency model '{short}' is for {what}, but the system has {other}; "
            f"give {' '.join(f'--{key} {timed[key]}' for key in differing)}, or a latency model for {other}."
        )


def _folded(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _entry_points(kind: str) -> Mapping[str, Any]:
    return {p.name: p for p in _all_entry_points().select(group=f"bench.{kind}")}


@cache
def _all_entry_points() -> Any:
    from importlib.metadata import entry_points  # heavy: only where names are listed or one is unknown

    return entry_points()
