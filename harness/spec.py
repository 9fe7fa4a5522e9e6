"""Specs: the one grammar of every option, `name:key=value,key=value`, and how it becomes an object.

    gamma:cv=2,rate=4          keyword arguments; a key may leave out its unit (`rate` for `rate_rps`)
    paged:16                   a value without a key fills the first field
    sim:policy=sarathi:budget=512   a value may itself be a spec with one argument
    sim:kv=[paged:block_tokens=1,blocks=900]   brackets hold a value with commas together

Field types are those of the dataclass, or of the parameters of the function: int, float, bool, str, each optionally
None. A field whose name ends in `_s` takes durations (`250ms`, `60s`, `5min`, `1h`), one in `_bytes` sizes (`80GiB`,
`24GB`), one in `_bytes_per_s` rates (`25Gbps`, `600GBps`).
"""

import ast
import dataclasses
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from harness.errors import UsageError, nearest
from harness.removed import REMOVED

T = TypeVar("T")

UNITS = ("_s", "_tokens", "_rps", "_bytes", "_flops", "_bytes_per_s")
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
          "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}  # fmt: skip
_BITS = {"bps": 8, "b/s": 8, "bit/s": 8, "Bps": 1, "B/s": 1}
_BANDWIDTH = {f"{prefix}{unit}": scale / bits for unit, bits in _BITS.items()
              for prefix, scale in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))}  # fmt: skip
_SECRET = re.compile("key|token|secret|passw|auth", re.IGNORECASE)
_COMMA = re.compile(r",(?![^\[]*\])")  # none within brackets
_QUANTITY = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]*)")


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec: `name`, keyword arguments, and at most one argument without a key."""

    name: str
    args: dict[str, str]
    first: str | None = None

    def __str__(self) -> str:
        values = [] if self.first is None else [_bracketed(self.first)]
        values += [f"{key}={_bracketed(value)}" for key, value in self.args.items()]
        return f"{self.name}:{','.join(values)}" if values else self.name


def parse(text: str) -> Spec:
    """Split `name:key=value,...`. Raises UsageError for an empty name, an empty or repeated key."""
    name, colon, rest = text.strip().partition(":")
    name = name.strip()
    if not name:
        raise UsageError(f"'{text}': a spec is name:key=value,key=value; the name is missing.")
    first: str | None = None
    args: dict[str, str] = {}
    if colon and not rest.strip():
        raise UsageError(f"'{text}': nothing follows the colon; write '{name}' or '{name}:key=value'.")
    for i, part in enumerate(_COMMA.split(rest) if colon else []):
        key, equals, value = part.partition("=")
        key, value = key.strip(), _unbracketed(value)
        nested = ":" in key  # `policy:...` never is a key; a bare value such as a URL or a nested spec may hold '='
        if (not equals or nested) and i == 0:
            first = _unbracketed(part)
            if not first:
                raise UsageError(f"'{text}': an argument is empty; a spec is name:key=value,key=value.")
        elif not equals or not key:
            raise UsageError(f"'{text}': '{part.strip()}' is not key=value.")
        elif key in args:
            raise UsageError(f"'{text}': {key} is given twice.")
        else:
            args[key] = value
    return Spec(name, args, first)


def _bracketed(value: str) -> str:
    """A value as it stands in a spec."""
    return f"[{value}]" if "," in value else value


def _unbracketed(text: str) -> str:
    """A value without the brackets around it; those of an address, `[::1]:8000`, are its own."""
    text = text.strip()
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def joined(text: object, name: str, kind: Callable[[str], T], example: str) -> tuple[T, ...]:
    """Return the numbers of a text such as '1/2/4'. Raises ValueError where one of them is no number of that kind."""
    try:
        return tuple(kind(part) for part in str(text).split("/"))
    except ValueError:
        raise ValueError(f"{name} must be numbers joined by '/', such as {example}, got '{text}'.") from None


def seconds(text: str, what: str = "duration") -> float:
    """Seconds of '250ms', '60s', '5min', '1h' or a plain number; raises UsageError otherwise."""
    return _quantity(text, _SECONDS, f"{what} must be a duration such as 0.25, 250ms, 60s or 5min, got '{text}'.")


def size_bytes(text: str, what: str = "size") -> float:
    """Bytes of '80GiB', '24GB' or a plain number; raises UsageError otherwise."""
    return _quantity(text, _BYTES, f"{what} must be a size such as 24GB or 80GiB, got '{text}'.")


def link_bytes_per_s(text: str, allowed: str = "A link is a rate such as 25Gbps (bits) or 600GBps (bytes)") -> float:
    """Bytes per second of '25Gbps' (bits) or '600GBps' (bytes); raises UsageError otherwise."""
    message = f"{allowed}, got '{text}'."
    if (rate := _quantity(text, _BANDWIDTH, message)) <= 0:
        raise UsageError(message)
    return rate


def _quantity(text: str, units: dict[str, float], message: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if not match or match.group(2) not in units:
        raise UsageError(message)
    value = float(match.group(1)) * units[match.group(2)]
    if not math.isfinite(value):
        raise UsageError(message)
    return value


def source_of(cls: type[Any]) -> tuple[ast.Module, ast.ClassDef] | None:
    """The source of a compiled class and its file, which stands beside it; None for any other."""
    module = sys.modules.get(cls.__module__)
    file = None if module is None else vars(module).get("__file__")
    if file is None or file.endswith(".py"):
        return None
    tree = ast.parse(Path(file).with_name(f"{cls.__module__.rpartition('.')[2]}.py").read_text(encoding="utf-8"))
    return tree, next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__)


@cache
def types_of(cls: Any, bounds: bool = False) -> dict[str, Any]:
    """The types of its arguments, of a compiled class from its source: mypyc keeps only those without arguments."""
    if inspect.isfunction(cls) or (source := source_of(cls)) is None:
        return typing.get_type_hints(cls, include_extras=bounds)
    fields = (node for node in source[1].body if isinstance(node, ast.AnnAssign))
    written = types.SimpleNamespace(__annotations__={ast.unparse(f.target): ast.unparse(f.annotation) for f in fields})
    return typing.get_type_hints(written, vars(sys.modules[cls.__module__]), include_extras=bounds)


def build(cls: type[T], spec: Spec, **given: object) -> T:
    """An object of dataclass `cls` from a spec; `given` are values that the spec does not override.

    Raises UsageError for unknown keys, wrong types, missing values, and whatever the class itself refuses
    with ValueError.
    """
    values = arguments(cls, spec, **given)
    try:
        return cls(**values)
    except ValueError as error:
        raise UsageError(f"'{spec}': {error}") from None


def defaults(plugin: Any) -> dict[str, Any]:
    """Return the default of each argument of a dataclass or a function; MISSING where it must be given."""
    if inspect.isfunction(plugin):
        params = inspect.signature(plugin).parameters.values()
        return {p.name: MISSING if p.default is p.empty else p.default for p in params}
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in dataclasses.fields(plugin)
        if f.init
    }


def arguments(plugin: Any, spec: Spec, **given: object) -> dict[str, Any]:
    """Return the arguments that a spec has for a plug-in, in their types; `given` are those it does not override."""
    fields = defaults(plugin)
    hints = types_of(plugin) if spec.args or spec.first is not None else {}
    values: dict[str, object] = {k: v for k, v in given.items() if k in fields}
    if spec.first is not None:
        if not fields:
            raise UsageError(f"'{spec}': {spec.name} takes no arguments.")
        name = next(iter(fields))
        _no_key_alone(spec, fields)
        values[name] = convert(spec.first, hints[name], name, str(spec))
    for key, text in spec.args.items():
        name = _field(key, fields, spec)
        if spec.first is not None and name == next(iter(fields)):
            raise UsageError(f"'{spec}': {name} is given twice.")
        values[name] = convert(text, hints[name], name, str(spec))
    missing = [name for name, default in fields.items() if default is MISSING and name not in values]
    if missing:
        raise UsageError(f"'{spec}': {missing[0]} must be given, e.g. '{spec.name}:{missing[0]}=...'.")
    return values


def _no_key_alone(spec: Spec, fields: typing.Mapping[str, Any]) -> None:
    """'gamma:cv' means a cv and has none: taken for the first argument it would be called a wrong rate."""
    key = str(spec.first).replace("-", "_")
    if any(key == name or any(name == key + unit for unit in UNITS) for name in fields):
        raise UsageError(f"'{spec}': {spec.first} has no value; write '{spec.name}:{spec.first}=...'.")


def _field(key: str, fields: typing.Mapping[str, object], spec: Spec) -> str:
    name = key.replace("-", "_")
    if name in fields:
        return name
    short = [f for f in fields if any(f == name + unit for unit in UNITS)]
    if len(short) == 1:
        return short[0]
    removed = (("argument", name), (f"argument of {spec.name}", name))
    if (instead := next((REMOVED[what] for what in removed if what in REMOVED), None)) is not None:
        raise UsageError(f"'{spec}': the argument '{key}' of {spec.name} was removed: {instead}.")
    if not fields:
        raise UsageError(f"'{spec}': {spec.name} takes no arguments.")
    if _SECRET.search(name):  # who writes a key here should not find it in the log of a build
        spec = dataclasses.replace(spec, args={**spec.args, key: "..."})
    raise UsageError(
        f"'{spec}': {spec.name} has no argument '{key}'.{nearest(name, fields)} Known: {', '.join(sorted(fields))}."
    )


def convert(text: str, hint: Any, name: str, where: str) -> object:
    """`text` as the annotated type of field `name`; raises UsageError naming the field and the spec `where`."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if type(None) in options and text.lower() in ("none", ""):
        return None
    kind = next(o for o in options if o is not type(None))
    if typing.get_origin(kind) is typing.Literal:
        allowed = [str(a) for a in typing.get_args(kind)]
        if (instead := REMOVED.get((name, text))) is not None:
            raise UsageError(f"'{where}': the {name} '{text}' was removed: {instead}.")
        if text not in allowed:
            choices = ", ".join(allowed)
            raise UsageError(f"'{where}': {name} must be one of {choices}, got '{text}'.{nearest(text, allowed)}")
        return text
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise UsageError(f"'{where}': {name} must be true or false, got '{text}'.")
    if kind is float and name.endswith("_bytes_per_s"):
        message = f"'{where}': {name} must be a rate such as 25Gbps (bits) or 600GBps (bytes), got '{text}'."
        return _quantity(text, {"": 1.0, **_BANDWIDTH}, message)
    if kind is float and name.endswith("_s"):
        return seconds(text, f"'{where}': {name}")
    if kind in (int, float) and name.endswith("_bytes"):
        return kind(size_bytes(text, f"'{where}': {name}"))
    if kind in (int, float):
        with suppress(ValueError, OverflowError):
            if math.isfinite(value := kind(text)):
                return value
        raise UsageError(f"'{where}': {name} must be a {'whole' if kind is int else 'finite'} number, got '{text}'.")
    raise TypeError(f"{name}: fields of type {hint} cannot be written in a spec")


def text_of(obj: object, name: str) -> str:
    """The shortest spec that builds `obj` again: fields that differ from their defaults."""
    parts = []
    for f in dataclasses.fields(obj):  # type: ignore[arg-type]  # obj is a dataclass instance
        value = getattr(obj, f.name)
        if f.init and (f.default is MISSING or value != f.default):
            parts.append(f"{f.name}={value!r}" if isinstance(value, float) else f"{f.name}={value}")
    return f"{name}:{','.join(parts)}" if parts else name
