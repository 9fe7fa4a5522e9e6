"""Reads the presets: workloads as data, one TOML file each; some list their requests one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from harness import untrusted
from harness.api import AnswerKind, Request
from harness.data.records import scheduled_table
from harness.errors import UsageError, no_such
from harness.spec import Spec, convert

FOLDER = Path(__file__).with_name("presets")


@dataclass(frozen=True, slots=True)
class Class:
    """A class of traffic of a mix: its share, and parts as specs. `deadline_s` bounds a whole task, no one waits for
    answers of an `offline` class.

    `slo` holds its own bounds in seconds, which stand in the SLO of the workload as `metric@name`. With `copies`
    it stands for so many classes alike (tenants) of which number k has a share of 1 / k**`zipf`. Its requests name
    `model` (such as a LoRA adapter) where that is not the one of the run; `<class>` in it stands for their class. Each
    asks for `n` answers, by default one, which are made as `kind` says (`beams`: by one beam search); `image_tokens` of
    its prompt are those of images. With `clusters` each asks one of so many questions, number k with a share of
    1 / k**`zipf`, which a response cache can tell apart by its category, the class.
    """

    name: str
    lengths: str
    share: float = 1.0
    arrivals: str = "poisson"
    sessions: str = "single"
    prefixes: str | None = None
    priority: int = 0
    offline: bool = False
    deadline_s: float | None = None
    slo: Mapping[str, float] = field(default_factory=dict)
    copies: int | None = None
    zipf: float = 0.0
    model: str | None = None
    n: int | None = None
    kind: AnswerKind = "autoregressive"
    image_tokens: int = 0
    clusters: int | None = None


@dataclass(frozen=True, slots=True)
class Preset:
    """The content of a preset file: parts as specs, or classes of traffic, or a list of requests.

    In a mix `rate_rps` is that of all requests, `shares_of` says what the shares count, and `arrivals`, where
    given, is one stream that is split among the classes; else each has its own. `arguments` are values that a
    user may change (`multi-tenant:tenants=50`); `{name}` stands for one in any text.
    """

    about: str
    lengths: str | None = None
    arrivals: str | None = None
    sessions: str = "single"
    prefixes: str | None = None
    content: str = "tokens"
    requests: int | None = None
    rate_rps: float = 1.0
    shares_of: Literal["requests", "arrivals"] = "requests"
    slo: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    arguments: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    request: tuple[Mapping[str, Any], ...] = ()
    classes: tuple[Class, ...] = ()

    def listed(self) -> tuple[Request, ...]:
        """The requests of a preset that lists them."""
        return tuple(Request(**{"id": i, "scheduled_s": 0.0, **row}) for i, row in enumerate(self.request))


@dataclass(frozen=True, slots=True)
class Listed:
    """The given requests, ordered by `scheduled_s`, whatever the seed."""

    requests: tuple[Request, ...]
    facts: Mapping[str, object] = field(default_factory=dict)

    def start(self, rng: np.random.Generator) -> Iterator[pa.Table]:  # noqa: ARG002  # nothing is random here
        yield scheduled_table(self.requests)

    def describe(self) -> Mapping[str, object]:
        """Where the list comes from."""
        return self.facts


def names() -> list[str]:
    """Sorted names of the presets."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def text(name: str) -> str:
    """The TOML of a preset: a built-in one, or the file of that name."""
    file = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    return untrusted.read_text(file, untrusted.MOST_TOML_BYTES)


def read(spec: Spec) -> Preset:
    """The preset of this name, or of the file of this name, with the arguments of the spec.

    Raises UsageError for arguments that it does not take, and for a file that is no preset.
    """
    with untrusted.readable(f"Preset '{spec.name}'"):
        values = untrusted.parse_toml(text(spec.name), f"'{spec.name}'")
    try:
        stated = msgspec.convert({"about": "", "arguments": values.get("arguments", {})}, Preset)
        arguments = _arguments(spec, dict(stated.arguments))
        values = _filled(values, arguments) | {"arguments": arguments}
        values |= {"about": str(values.get("about", "")).strip(), "classes": values.pop("class", [])}
        msgspec.convert(values, Preset)
    except msgspec.ValidationError as error:
        text_of_error = str(error).replace("$.classes", "$.class")  # as it stands in the file
        raise UsageError(f"'{spec.name}' is not a preset: {text_of_error}.") from None
    for kind, table in ((Preset, values), *((Class, table) for table in values["classes"])):
        keys = [f.name for f in fields(kind)]
        if unknown := [key for key in table if key not in keys]:
            raise UsageError(f"'{spec.name}': {no_such('key of a preset', unknown[0], keys)}")
    return Preset(**{**values, "classes": tuple(Class(**table) for table in values["classes"])})


def _arguments(spec: Spec, defaults: dict[str, object]) -> dict[str, object]:
    if spec.first is not None or (spec.args and not defaults):
        takes = f"takes {', '.join(defaults)} as key=value" if defaults else "takes no arguments"
        raise UsageError(
            f"'{spec}': preset {spec.name} {takes}; use --rate, --arrivals, --lengths, --sessions or --content to "
            "change it."
        )
    for key in spec.args:
        if key not in defaults:
            raise no_such(f"argument of {spec.name}", key, defaults)
    return defaults | {key: convert(value, type(defaults[key]), key, str(spec)) for key, value in spec.args.items()}


def _filled(value: Any, arguments: Mapping[str, object]) -> Any:
    """The value with `{name}` replaced in all its texts; a text that is nothing else becomes the argument itself."""
    if isinstance(value, dict):
        return {key: _filled(item, arguments) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, arguments) for item in value]
    if not isinstance(value, str):
        return value
    for name, argument in arguments.items():
        if value == f"{{{name}}}":
            return argument
        value = value.replace(f"{{{name}}}", str(argument))
    return value
