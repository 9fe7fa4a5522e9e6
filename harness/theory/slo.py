"""SLOs that follow from how long a decode step takes, and the published ones they were modelled on.

Source: Agrawal et al., Sarathi-Serve, OSDI 2024, section 5.1 and table 3.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from harness.api import Bound, LatencyModel, Slo
from harness.errors import UsageError, no_such
from harness.slo_text import text

FACTORS: Mapping[str, float] = MappingProxyType({"strict": 5.0, "relaxed": 25.0})
"""How many decode steps a token may take (Sarathi-Serve, section 5.1)."""

BATCH, CONTEXT_TOKENS = 32, 4096
"""The decode step that is counted: sequences, and tokens of context of each (Sarathi-Serve, section 5.1)."""

PERCENTILE = 99.0


@dataclass(frozen=True, slots=True)
class Published:
    """The SLOs of a model and its hardware as they were published: p99 of ITL in seconds."""

    title: str
    strict_s: float
    relaxed_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Derived:
    """One SLO: `factor` decode steps, as the p99 of ITL in seconds."""

    name: str
    factor: float
    itl_p99_s: float

    @property
    def slo(self) -> str:
        """The SLO as --slo takes it."""
        return text(Slo((Bound("itl", self.itl_p99_s, percentile=PERCENTILE),)))


@cache
def published() -> Mapping[str, Published]:
    """Sarathi-Serve's table 3 by model."""
    rows = tomllib.loads(Path(__file__).with_name("sarathi.toml").read_text(encoding="utf-8"))
    return MappingProxyType({model: Published(**row) for model, row in rows.items()})


def decode_step_s(
    latency: LatencyModel, *, batch: int = BATCH, context: int = CONTEXT_TOKENS, stages: int = 1
) -> float:
    """Seconds from token to token of `batch` sequences with `context` tokens each, with nothing else in the batch.

    A batch passes `stages` pipeline stages, each as long as the latency model says.
    """
    return stages * latency.decode_s(batch, batch * context)


def derive(step_s: float, names: str) -> list[Derived]:
    """The SLOs of 'strict,relaxed,10x' for a decode step of `step_s` seconds. Raises UsageError for another name."""
    return [Derived(name, factor, factor * step_s) for name, factor in map(_factor, names.split(","))]


def _factor(name: str) -> tuple[str, float]:
    name = name.strip()
    if name in FACTORS:
        return name, FACTORS[name]
    if re.fullmatch(r"\d+(\.\d+)?x", name) and float(name[:-1]) > 0:
        return name, float(name[:-1])
    raise no_such("SLO to derive", name, FACTORS, "Or a number of decode steps: 10x.")


def tokens(given: str, name: str) -> int:
    """A number of tokens: '4096', or '4k' of 1,024 each. Raises UsageError."""
    match = re.fullmatch(r"(\d+)([kK]?)", given.strip())
    if match is None or not int(match[1]):
        raise UsageError(f"{name} must be a number of tokens above 0, such as 4096 or 4k (4,096), got '{given}'.")
    return int(match[1]) * (1024 if match[2] else 1)
