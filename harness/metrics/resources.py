"""What a deployment takes: GPUs, power and money, as the facts of its backend tell."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.catalog import hardware
from harness.errors import UsageError


class Resources(NamedTuple):
    """GPUs, kW and dollars per hour of a deployment; None where nothing tells. Power is what was given for an endpoint,
    and the makers' limits of all GPUs of a simulated system."""

    gpus: int | None = None
    kw: float | None = None
    usd_per_hour: float | None = None


class Limits(NamedTuple):
    """Makers' limits (W) of the GPUs of a side: its own, and those of a pool of experts."""

    own: float
    experts: float


def resources(backend: Mapping[str, Any]) -> Resources:
    """Those of a backend, from what it describes."""
    gpus, watts, usd = (backend.get(name) for name in ("gpus", "watts", "usd_per_hour"))
    gpu_count = gpus if isinstance(gpus, int) and gpus > 0 else None
    if watts is None and gpu_count is not None:
        side_limits = [limits_w(side) for side in sides_of(backend)]
        watts = None if None in side_limits else sum(sum(limits) for limits in side_limits if limits is not None)
    return Resources(
        gpu_count,
        watts / 1000 if isinstance(watts, int | float) and watts > 0 else None,
        float(usd) if isinstance(usd, int | float) and usd > 0 else None,
    )


def sides_of(backend: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The facts of the prefill and the decode side of a backend, of its groups, or of all of it."""
    sides = [side for role in ("prefill", "decode") if isinstance(side := backend.get(role), dict)]
    return sides or backend.get("groups") or [backend]


def limits_w(side: Mapping[str, Any]) -> Limits | None:
    """The limits of a side; None where its GPUs or their limits are unknown."""
    name, gpus, experts = side.get("hardware"), side.get("gpus", side.get("gpus_at_start")), side.get("expert_gpus", 0)
    if not isinstance(name, str) or not isinstance(gpus, int):
        return None
    try:
        each_w, of_experts_w = hardware(name).power_w, hardware(str(side.get("expert_hardware", name))).power_w
    except UsageError:  # a file that is gone, or a backend that names none of the catalogue
        return None
    if each_w is None or of_experts_w is None:
        return None
    return Limits((gpus - experts) * each_w, experts * of_experts_w)
