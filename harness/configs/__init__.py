"""What `--config` reads.

--config FILE      keys are option names without the dashes: rate = 4, fail-under = 0.9
--config run.json  (or its folder) repeats that run
--config NAME      a configuration of this folder (bench list configs): the settings of a published experiment
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import untrusted
from harness.api import VERSION
from harness.errors import UsageError, no_such
from harness.options import Given


def names() -> list[str]:
    """Sorted names of all configurations."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.toml"))


def text_of(name: str) -> str | None:
    """The file of that name as it stands, None where there is none."""
    return None if name not in names() else Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")


def about(name: str) -> str:
    """Its first line: what it is."""
    return (text_of(name) or "").partition("\n")[0].removeprefix("# ")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration read from disk; `schedule_sha256` when it is the run.json of an earlier run.

    `differs` are sentences on what bench does otherwise than the experiment, whatever the options.
    """

    given: Given
    schedule_sha256: str | None = None
    differs: tuple[str, ...] = ()


def read(path: str) -> ConfigFile:
    """Options of a TOML file, of a run.json (or the folder of a run), or of a named configuration.

    Raises UsageError.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "run.json"
        if not file.exists():
            raise UsageError(f"'{path}' is a folder without run.json; name a TOML file, or the folder of a run.")
    with untrusted.readable(f"'{path}'"):
        text = untrusted.read_text(file) if file.exists() else _named(path)
        if file.suffix == ".json":
            return _from_run(text, str(file))
        values = untrusted.parse_toml(text, f"'{path}'")
    differs = tuple(map(str, values.pop("differs", ())))
    return ConfigFile(Given(_flat(values, str(path)), str(path)), differs=differs)


def _named(name: str) -> str:
    text = text_of(name)
    if text is not None:
        return text
    if "/" in name or "." in name:
        raise UsageError(f"No configuration '{name}'; 'bench init' writes one.")
    raise UsageError(f"{no_such('configuration', name, names())} 'bench init' writes one of your own.")


def _flat(values: dict[str, Any], path: str) -> dict[str, object]:
    tables = [key for key, value in values.items() if isinstance(value, dict | list)]
    if tables:
        raise UsageError(f"{tables[0]} in '{path}' must be one value; options are written as name = value.")
    return {key.replace("_", "-"): value for key, value in values.items()}


def _from_run(text: str, path: str) -> ConfigFile:
    info = untrusted.parse_json(text, f"'{path}'")
    spec = info.get("spec") if isinstance(info, dict) else None
    if not isinstance(spec, dict):
        raise UsageError(f"'{path}' was not written by 'bench run': it has no 'spec'.")
    schema = info.get("schema")
    if isinstance(schema, int) and schema > VERSION:
        raise UsageError(f"'{path}' has schema {schema}, this bench reads up to {VERSION}; use a newer bench.")
    schedule = info.get("schedule")
    sha256 = schedule.get("sha256") if isinstance(schedule, dict) else None
    return ConfigFile(Given(_flat(spec, path), path), sha256)
