"""Writes measurements in the form that `bench validate --against FILE.toml` reads (docs/guide/validate.md)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pandas as pd

from harness.api import Simulator
from harness.errors import UsageError
from harness.experiments.validate import measurements
from harness.experiments.validate.measurements import Times, Traffic
from harness.registry import make

Options = Mapping[str, object]
"""Options of the backend `sim` by their names."""


def needed(path: Path) -> Path:
    """The path of a file of measurements. Raises UsageError where there is none."""
    if not path.is_file():
        raise UsageError(f"'{path}' does not exist; name the folder of public measurements with --data.")
    return path


def times(traffic: Traffic, options: Options) -> Times:
    """The traffic on the backend `sim` with these options."""
    return measurements.times(traffic, cast("Simulator", make("backends", "sim", log_steps=False, **options)))


def requests(traffics: Mapping[str, Traffic | Sequence[Traffic]]) -> pd.DataFrame:
    """A row a request of each run; of several repeats of a run those of each."""
    parts = []
    for name, given in traffics.items():
        for repeat, one in enumerate([given] if isinstance(given, Traffic) else given):
            columns = {
                "arrival_s": one.arrival_s,
                "prompt_tokens": one.prompt_tokens,
                "output_tokens": one.output_tokens,
            }
            parts.append(pd.DataFrame({"run": name, "repeat": repeat} | columns))
    return pd.concat(parts, ignore_index=True)


def write(
    folder: Path, name: str, *, title: str, setting: Sequence[str], backends: Mapping[str, Options],
    requests: pd.DataFrame, runs: pd.DataFrame | None = None, backend: str | None = None,
    slo: Mapping[str, str] | None = None, metrics: Sequence[str] = (), targets: Sequence[Options] = (),
) -> Path:  # fmt: skip
    """Write `name`.toml and its tables into the folder, and return its path."""
    requests.to_parquet(folder / f"{name}-requests.parquet", index=False)
    head: dict[str, object] = {"title": title, "setting": list(setting), "requests": f"{name}-requests.parquet"}
    if runs is not None:
        runs.to_csv(folder / f"{name}-runs.csv", index=False)
        head["runs"] = f"{name}-runs.csv"
    if backend is not None:
        head["backend"] = backend
    if metrics:
        head["metrics"] = list(metrics)
    tables = [("", head), ("[slo]", slo or {})]
    tables += [(f"[backends.{json.dumps(key)}]", options) for key, options in backends.items()]
    tables += [("[[targets]]", one) for one in targets]
    text = "\n".join(
        "".join([f"{head}\n" if head else "", *map(_line, table.items())]) for head, table in tables if table
    )
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _line(item: tuple[str, object]) -> str:
    key, value = item
    return f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
