"""Models, GPUs and formats by name, from the tables beside this file, or from a file of the user.

`model` and `hardware` take a name of the catalogue or a file: a Hugging Face `config.json` (or a folder that holds
one), a TOML file of the keys of the tables, or the run.json of a run, which holds the figures of the files it used.
"""

import hashlib
import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import msgspec

from harness import untrusted
from harness.catalog import config_json
from harness.catalog.facts import FAMILIES, Experts, Format, Formats, Hardware, Latent, Linear, Model, Window
from harness.errors import UsageError, nearest, no_such

T = TypeVar("T")
_PARTS: Mapping[str, type] = MappingProxyType(
    {"experts": Experts, "latent": Latent, "window": Window, "linear": Linear, "formats": Formats}
)
_FOLDER = Path(__file__).parent
_CONFIG = "config.json"
_RUN = "run.json"
_QUANTISED = "hf_quant_config.json"
"""Where checkpoints of TensorRT Model Optimizer say how they are quantised, beside their config.json."""


@cache
def table(kind: str) -> Mapping[str, Any]:
    """Entries of `models`, `hardware` or `formats`, as they stand in their file."""
    return MappingProxyType(tomllib.loads((_FOLDER / f"{kind}.toml").read_text(encoding="utf-8")))


def models() -> list[str]:
    """Sorted names of all models."""
    return sorted(table("models"))


def gpus() -> list[str]:
    """Sorted names of all GPUs."""
    return sorted(table("hardware"))


def formats() -> list[str]:
    """Sorted names of all formats."""
    return sorted(table("formats"))


@cache
def format_named(name: str) -> Format:
    """The format of that name. Raises UsageError with the nearest known name."""
    entry = table("formats").get(name)
    if entry is None:
        raise no_such("format", name, formats())
    return Format(name, **entry)


def is_file(text: str) -> bool:
    """Whether a text means a file and not a name: it has a path separator, or ends in .json or .toml."""
    separators = [os.sep, *([os.altsep] if os.altsep else [])]
    return any(separator in text for separator in separators) or text.endswith((".json", ".toml"))


def model(name: str) -> Model:
    """The model of that name, in any case, or of that file. Raises UsageError with the nearest known name."""
    return _model_of(_read(name)) if is_file(name) else _model_named(name.lower())


def hardware(name: str) -> Hardware:
    """The GPU of that name, in any case, or of that file. Raises UsageError with the nearest known name."""
    return _hardware_of(_read(name)) if is_file(name) else _hardware_named(name.lower())


def facts_of_files(model_name: str, hardware_names: tuple[str, ...]) -> dict[str, object]:
    """What run.json says of a model and of GPUs that are files: their figures, and the SHA-256 of what was read."""
    facts: dict[str, object] = {}
    if is_file(model_name):
        facts["model_file"] = {"sha256": _read(model_name).sha256, "figures": figures(model(model_name))}
    if files := [name for name in hardware_names if is_file(name)]:
        facts["hardware_files"] = {
            name: {"sha256": _read(name).sha256, "figures": figures(hardware(name))} for name in files
        }
    return facts


def figures(of: Model | Hardware) -> dict[str, Any]:
    """All that is known of a model or a GPU, by its name."""
    return {name: value for name, value in asdict(of).items() if value is not None}


def described(backend: Mapping[str, Any], gpu: str) -> tuple[Model | None, Hardware | None]:
    """The model of a system, and its GPU of this name, by the facts of run.json; None for one that is not known.

    Of files the figures there count: none is read, as another may lie there on this machine.
    """
    m: Model | None = None
    on: Hardware | None = None
    with suppress(UsageError, KeyError, TypeError):  # figures of another version, or of another tool
        file = backend.get("model_file")
        m = _model_named(str(backend["model"]).lower()) if file is None else _convert(file["figures"], Model, _RUN)
    with suppress(UsageError, KeyError, TypeError):
        files = backend.get("hardware_files", {})
        on = _gpu(files[gpu]["figures"], _RUN) if gpu in files else _hardware_named(gpu.lower())
    return m, on


def comparisons(latency: str) -> list[Mapping[str, Any]]:
    """Rows of compared.toml of the latency model of this name: how far it was from measurements, by model and GPU."""
    return [row for row in table("compared")["compared"] if row["latency"] == latency]


@cache
def _model_named(name: str) -> Model:
    entry = table("models").get(name)
    if entry is None:
        raise _unknown("model", name, models())
    return _convert({"name": name, **entry}, Model, name)


@cache
def _hardware_named(name: str) -> Hardware:
    entry = table("hardware").get(name)
    if entry is None:
        raise _unknown("hardware", name, gpus())
    return _gpu({"name": name, **entry}, name)


def _unknown(what: str, name: str, known: list[str]) -> UsageError:
    """The usual error; but 'a100' means 'a100-40g' or 'a100-80g' although 'a10' is nearer."""
    longer = [k for k in known if k.startswith(name.lower())] if name else []
    if not 1 <= len(longer) <= 2:
        return no_such(what, name, known)
    meant = " or ".join(f"'{candidate}'" for candidate in longer)
    return UsageError(f"No {what} named '{name}'. Did you mean {meant}? Known: {', '.join(known)}.")


@dataclass(frozen=True, slots=True)
class _File:
    """What a file holds; `quantised` is the text of the file beside it that says how a checkpoint is quantised."""

    given: str
    path: str
    text: str
    quantised: str | None

    @property
    def sha256(self) -> str:
        """Of everything that was read."""
        return hashlib.sha256((self.text + (self.quantised or "")).encode()).hexdigest()

    @property
    def stem(self) -> str:
        """What to call it: its folder where it is a config.json."""
        path = Path(self.path)
        return path.resolve().parent.name if path.name == _CONFIG else path.stem


def _read(given: str) -> _File:
    """The file, or the config.json of a folder. Raises UsageError for one that is not there."""
    path = Path(given).expanduser()
    if path.is_dir():
        path /= _CONFIG if (path / _CONFIG).exists() or not (path / _RUN).exists() else _RUN
    beside = path.with_name(_QUANTISED)
    with untrusted.readable(f"'{given}'", ". The run.json of a run with it holds its figures; give that"):
        text = untrusted.read_text(path)
        quantised = untrusted.read_text(beside) if path.name == _CONFIG and beside.exists() else None
    return _File(given, str(path), text, quantised)


@lru_cache(maxsize=256)
def _model_of(file: _File) -> Model:
    decoded = _decoded(file, "model")
    if isinstance(decoded.get("model_file"), dict):
        return _convert(decoded["model_file"]["figures"], Model, file.given)
    if file.path.endswith(".toml"):
        return _convert({"name": file.stem, "source": f"'{file.given}'", **decoded}, Model, file.given)
    quantised = None if file.quantised is None else _json(file.quantised, file.given)
    return config_json.model_of(decoded, quantised, file.stem, file.given)


@lru_cache(maxsize=256)
def _hardware_of(file: _File) -> Hardware:
    decoded = _decoded(file, "hardware")
    if isinstance(decoded.get("hardware_files"), dict):
        if len(decoded["hardware_files"]) > 1:
            raise UsageError(
                f"'{file.given}' holds the figures of {len(decoded['hardware_files'])} kinds of GPU, not one."
            )
        (stored,) = decoded["hardware_files"].values()
        return _gpu(stored["figures"], file.given)
    if not file.path.endswith(".toml"):
        raise UsageError(
            f"'{file.given}' is not known as hardware: give a TOML file of the keys of 'bench explain h100', or a "
            "run.json whose hardware was a file."
        )
    return _gpu({"name": file.stem, "title": file.stem, **decoded}, file.given)


def _decoded(file: _File, what: Literal["model", "hardware"]) -> dict[str, Any]:
    """The figures of a file as a mapping, those of a backend where it is a run.json."""
    if file.path.endswith(".toml"):
        try:
            parsed = untrusted.parse_toml(file.text, f"'{file.given}'")
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"'{file.given}' is not TOML: {error}.") from None
        inner = [value for value in parsed.values() if isinstance(value, dict)]
        if len(parsed) == 1 and inner and "value" not in inner[0]:  # one table, as in the catalogue
            return {"name": next(iter(parsed)), **inner[0]}
        return parsed
    parsed = _json(file.text, file.given)
    backend = parsed.get("backend")
    if not isinstance(backend, dict):
        return parsed
    if f"{what}_file" not in backend and f"{what}_files" not in backend:
        raise UsageError(
            f"'{file.given}' holds no figures of {what}: that run named "
            f"{backend.get(what, 'none')}, which is no file; give the name."
        )
    return backend


def _json(text: str, given: str) -> dict[str, Any]:
    with untrusted.readable(f"'{given}'"):
        parsed = untrusted.parse_json(text, f"'{given}'")
    if not isinstance(parsed, dict):
        raise UsageError(f"'{given}' holds no object of names and values.")
    return parsed


def _gpu(entry: Mapping[str, Any], where: str) -> Hardware:
    """Each figure may stand with its source, `{ value = ..., source = "..." }`, or alone."""
    sourced = {key: value for key, value in entry.items() if isinstance(value, dict) and "value" in value}
    plain = {key: value["value"] if key in sourced else value for key, value in entry.items() if key != "sources"}
    plain = {key: int(v) if isinstance(v, float) and v.is_integer() else v for key, v in plain.items()}  # 48e9 bytes
    sources = {key: str(value.get("source", f"'{where}'")) for key, value in sourced.items()}
    sources |= {key: f"'{where}'" for key, value in plain.items() if key not in sourced and not isinstance(value, str)}
    gpu = _convert(plain, Hardware, where)
    for field in fields(gpu):
        value = getattr(gpu, field.name)
        if isinstance(value, int | float) and value <= 0:
            raise UsageError(f"'{where}': {field.name} must be above 0, got {value}.")
    return replace(gpu, sources={**sources, **entry.get("sources", {})})


def _convert(entry: Mapping[str, Any], kind: type[T], where: str) -> T:
    """An object of a dataclass. Raises UsageError for a key that is missing, unknown, or of another type."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # kind is a dataclass
    for key, value in entry.items():
        if kind is Model and key in _PARTS and isinstance(value, dict):
            _convert(value, _PARTS[key], where)
        if key not in names:
            raise UsageError(
                f"'{where}': no figure is called '{key}'.{nearest(key, names)} Known: {', '.join(sorted(names))}."
            )
    try:
        converted = msgspec.convert(dict(entry), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"'{where}': {_sentence(str(error))}") from None
    if isinstance(converted, Model):
        _check(converted, where)
    return converted


def _sentence(text: str) -> str:
    """msgspec's message without its path syntax: 'layers is missing.'"""
    text = text.replace("Object missing required field ", "Missing ").replace(" - at `$.", " in `").replace("`", "'")
    return f"{text[0].lower()}{text[1:]}." if not text.endswith(".") else text


def _check(m: Model, where: str) -> None:
    """Raise UsageError for figures that no model has."""
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "max_tokens"):
        if getattr(m, name) < 1:
            raise UsageError(f"'{where}': {name} must be at least 1, got {getattr(m, name)}.")
    if m.heads % m.kv_heads:
        raise UsageError(f"'{where}': {m.kv_heads} KV heads do not divide the {m.heads} attention heads.")
    if m.family not in FAMILIES:
        raise no_such("family of models", m.family, FAMILIES)
    for part in fields(m.formats):
        format_named(getattr(m.formats, part.name))
    if m.window is not None and not (m.window.tokens > 0 and 0 < m.window.layers <= m.kv_layers):
        raise UsageError(f"'{where}': a window needs tokens and at most {m.kv_layers} layers.")
    if m.linear is not None and not 0 < m.linear.layers <= m.layers:
        raise UsageError(f"'{where}': linear attention needs 1 to {m.layers} layers, got {m.linear.layers}.")
    if m.experts is not None:
        e = m.experts
        if not (0 < e.per_token <= e.routed and e.ffn > 0 and e.interval > 0 and 0 <= e.dense_layers <= m.layers):
            raise UsageError(f"'{where}': a token meets per_token of the routed experts, from 1 to all of them.")
