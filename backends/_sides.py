"""The two sides of a disaggregated cluster as they are asked for, `2:tp=2,pp=1`, and the link between them."""

import re
from dataclasses import dataclass, replace
from math import inf

from harness.catalog import Hardware
from harness.errors import UsageError
from harness.spec import build, parse

_RATE = re.compile(r"(\d+\.?\d*|\.\d+)\s*([kMGT]?)(bps|b/s|bit/s|Bps|B/s)")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class Side:
    """`count` replicas of one role, each on `tp` x `pp` GPUs; `policy`, `router` and `latency` are specs."""

    count: int
    tp: int = 1
    pp: int = 1
    policy: str | None = None
    router: str | None = None
    latency: str | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all its replicas."""
        return self.count * self.tp * self.pp


def side(text: str, role: str) -> Side:
    """`2` or `2:tp=2,pp=1,policy=...`. Raises UsageError."""
    spec = parse(text)
    if not re.fullmatch(r"\d+", spec.name):
        raise UsageError(f"{role} must be how many replicas and of what shape, such as 2 or 2:tp=2,pp=1, got '{text}'.")
    found = build(Side, replace(spec, name=role, args={"count": spec.name, **spec.args}))
    for name in ("count", "tp", "pp"):
        if getattr(found, name) < 1:
            raise UsageError(f"'{text}': {name} of {role} must be at least 1, got {getattr(found, name)}.")
    return found


@dataclass(frozen=True, slots=True)
class Rate:
    """What a link carries: bytes per second, and the seconds before the first one."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class _Latency:
    latency_s: float = 0.0


def rate(text: str, gpu: Hardware) -> Rate:
    """`nvlink`, `pcie` (rates of `gpu`, both directions, as their makers print them), `25Gbps`, `600GBps`, `none`.

    `none` takes no time. Each may add a latency: `25Gbps:latency=1ms`. Raises UsageError.
    """
    spec = parse(text)
    latency_s = build(_Latency, spec).latency_s
    if latency_s < 0:
        raise UsageError(f"'{text}': the latency of a link must not be negative.")
    return Rate(_bytes_per_s(spec.name, text, gpu), latency_s)


def _bytes_per_s(name: str, text: str, gpu: Hardware) -> float:
    if name == "none":
        return inf
    if name == "pcie":
        return gpu.pcie_bytes_per_s
    if name == "nvlink":
        if gpu.nvlink_bytes_per_s is None:
            raise UsageError(f"link=nvlink: {gpu.name} has none; give link=pcie or a rate such as link=25Gbps.")
        return gpu.nvlink_bytes_per_s
    match = _RATE.fullmatch(name)
    if match is None or float(match[1]) == 0:
        raise UsageError(f"link must be nvlink, pcie, none or a rate such as 25Gbps or 600GBps, got '{text}'.")
    bits = match[3] in ("bps", "b/s", "bit/s")
    return float(match[1]) * _SCALE[match[2]] / (8 if bits else 1)
