"""JSON files as types: attributes inside, JSON at the border, and nothing of a file lost on the way.

`decode` checks what readers compute with and names the place that is wrong; `encode` gives the file back. Keys that
no field has stay in it, and keys that it lacked stay away. UNSET stands for a key that a new file leaves out, None
for null.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, field

Facts: TypeAlias = dict[str, object]
"""What a plug-in or a machine reports of itself, with its own names."""

Number: TypeAlias = int | Annotated[float, Meta(ge=-1e300, le=1e300)]  # further out arithmetic overflows
Positive: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, le=1e300)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Share: TypeAlias = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
Percentile: TypeAlias = Annotated[int, Meta(ge=0, le=100)] | Annotated[float, Meta(ge=0, le=100)]
Range: TypeAlias = tuple[Number, Number]
Flags: TypeAlias = tuple[bool, bool]
Text: TypeAlias = str | None

P = TypeVar("P", bound="Part")
D = TypeVar("D", bound="Document")


class Part(Struct, frozen=True):
    """A part of a file; false where nothing of it is known."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) != default for name, _, default in _fields(type(self)))


class Document(Part, frozen=True, kw_only=True):
    """A whole file."""

    as_read: Facts | None = field(default=None, name=" as read")  # the object this came from; never written

    def change(self, **changes: Any) -> Self:
        """The same with other parts. Raises TypeError for a key that the file does not have."""
        return msgspec.structs.replace(self, **changes)


class Damaged(ValueError):
    """A value of another kind than the file has; the message is its place, 'summary.bounds[0].metric'."""


def from_facts(kind: type[P], facts: Mapping[str, object]) -> P:
    """A part, of the facts that a plug-in reports; those that no field has are left out."""
    return kind(**{name: facts[name] for name in kind.__struct_fields__ if name in facts})


def inner(facts: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """A nested object of free-form facts; empty where it is missing or is no object."""
    nested = facts.get(name)
    return nested if isinstance(nested, Mapping) else {}


def alike(facts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """What is there and equal in all of them; nothing of none."""
    first = facts[0] if facts else {}
    return {name: value for name, value in first.items() if all(name in row and row[name] == value for row in facts)}


def decode(kind: type[D], read: object) -> D:
    """The file of this kind in a JSON object. Raises Damaged at the first value that does not fit."""
    try:
        return msgspec.convert(read, kind).change(as_read=read)
    except msgspec.ValidationError as error:
        raise Damaged(_place(kind, read, error)[:200]) from None


def of(kind: type[D], facts: Mapping[str, object]) -> D:
    """The file with these contents, in their order. Raises TypeError where they do not fit: a bug."""
    try:
        return decode(kind, facts)
    except Damaged as error:
        raise TypeError(f"{kind.__name__} at '{error}'") from error


def encode(part: Part) -> dict[str, Any]:
    """The JSON object: fields in their order, after those of the file it was read from, which keeps its own."""
    encoded: dict[str, Any] = _plain(part, part.as_read if isinstance(part, Document) else None)
    return encoded


def _plain(value: object, read: object) -> Any:
    if isinstance(value, Struct):
        return _object(value, read if isinstance(read, dict) else None)
    if isinstance(value, dict):
        before = read if isinstance(read, dict) else {}
        return {key: _plain(item, before.get(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = read if isinstance(read, list | tuple) and len(read) == len(value) else [None] * len(value)
        return [_plain(*pair) for pair in zip(value, items, strict=True)]
    return value


def _object(part: Struct, read: Facts | None) -> Facts:
    before = {} if read is None else read
    lean = read is not None or part.__struct_config__.omit_defaults
    encoded: Facts = {}
    for name, key, default in _fields(type(part)):
        value = getattr(part, name)
        absent = key not in before and lean and (value is default or (default in ({}, []) and value == default))
        if value is not UNSET and not absent and name != "as_read":
            encoded[key] = _plain(value, before.get(key))
    return {name: encoded.get(name, value) for name, value in before.items()} | encoded


@cache
def _fields(of: type[Struct]) -> list[tuple[str, str, object]]:
    """The name of every field, its key in JSON, and its default: NODEFAULT where it has to be given."""
    return [(f.name, f.encode_name, {} if f.default_factory is dict else [] if f.default_factory is list else f.default)
            for f in msgspec.structs.fields(of)]  # fmt: skip


def _place(kind: type[Struct], read: object, error: msgspec.ValidationError) -> str:
    """'summary.bounds[0].metric' of an error; msgspec leaves out the keys of mappings, so they are looked for."""
    place = str(error).partition("at `$")[2].rstrip("`")
    if missing := re.search(r"missing required field `(.*?)`", str(error)):
        place += f".{missing[1]}"
    while "[...]" in place:
        before, _, after = place.partition("[...]")
        place = f"{before}.{_broken_key(kind, read, before, str(error))}{after}"
    return place.lstrip(".")


def _broken_key(kind: type[Struct], read: Any, place: str, message: str) -> str:
    """The key of the mapping at this place without which the error would be another, or none."""
    steps = [int(step[1:-1]) if step[0] == "[" else step for step in re.findall(r"[^.\[\]]+|\[\d+\]", place)]
    mapping: Any = read
    for step in steps:
        mapping = mapping[step]
    for key, value in mapping.items():
        try:
            msgspec.convert(_with(read, steps, {key: value}), kind)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return str(key)
    return "..."


def _with(read: Any, steps: list[Any], value: object) -> Any:
    """The same with another value at this place."""
    if not steps:
        return value
    copy = dict(read) if isinstance(read, dict) else list(read)
    copy[steps[0]] = _with(read[steps[0]], steps[1:], value)
    return copy
