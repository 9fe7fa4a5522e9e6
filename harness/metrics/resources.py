"""What a deployment takes: GPUs, power and money, as the facts of its backend tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.catalog import hardware
from harness.errors import UsageError


class Resources(NamedTuple):
    """GPUs, kW and dollars per hour of a deployment; None where nothing tells. Power is what was given for an endpoint,
    and the makers' limits of all GPUs of a simulated system."""

    gpus: int | None = None
    kw: float | None = None
    usd_per_hour: float | None = None


def resources(backend: Mapping[str, Any]) -> Resources:
    """Those of a backend, from what it describes."""
    gpus, watts, usd = (backend.get(name) for name in ("gpus", "watts", "usd_per_hour"))
    known = gpus if isinstance(gpus, int) and gpus > 0 else None
    if watts is None and known is not None:
        watts = _limits_w(backend, known)
    return Resources(
        known,
        watts / 1000 if isinstance(watts, int | float) and watts > 0 else None,
        float(usd) if isinstance(usd, int | float) and usd > 0 else None,
    )


def _limits_w(backend: Mapping[str, Any], gpus: int) -> float | None:
    sides = [side for role in ("prefill", "decode") if isinstance(side := backend.get(role), dict)]
    total = 0.0
    for side in sides or [{**backend, "gpus": gpus}]:
        name, count, pool = side.get("hardware"), side.get("gpus"), side.get("expert_gpus", 0)
        if not isinstance(name, str) or not isinstance(count, int):
            return None
        try:
            each_w, pool_w = hardware(name).power_w, hardware(str(side.get("expert_hardware", name))).power_w
        except UsageError:  # a file that is gone, or a backend that names none of the catalogue
            return None
        if each_w is None or pool_w is None:
            return None
        total += (count - pool) * each_w + pool * pool_w
    return total
