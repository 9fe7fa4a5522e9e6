"""Where measured kernels lie, shipped or in a folder of the user, and for which GPUs."""

import math
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from backends.kernels.tables import MeasuredKernels, systems
from harness.catalog import Hardware, hardware
from harness.errors import UsageError, no_such

GPU_OF = MappingProxyType({
    "a100_sxm": "a100-80g", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "l4": "l4", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000",
})  # fmt: skip
"""The GPU of the catalogue that a measured system has."""


SHIPPED = Path(__file__).parent / "measured"
"""The fastest times of each kernel over all engines, at a part of the measured shapes."""
INSTALLED = "aiconfigurator"


def installed() -> Path:
    """The tables of the installed package aiconfigurator. Raises UsageError where it is not there."""
    for package in ("aiconfigurator_core", "aiconfigurator"):
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            if (folder := Path(place) / "systems" / "data").is_dir():
                return folder
    raise UsageError(f"data={INSTALLED} needs that package; install aiconfigurator-core, or leave data out.")


def measured_kernels(data: str | None, system: str | None, gpu: Hardware, library: str = "") -> MeasuredKernels:
    """Kernels of `gpu` from a folder, measured on `system`, else on its own or the nearest GPU. Raises UsageError."""
    folder = SHIPPED if data is None else installed() if data == INSTALLED else Path(data)
    known = [one for one in systems(folder) if one in GPU_OF]
    if not known:
        raise UsageError(f"'{folder}' holds no tables of kernels in the layout SYSTEM/gemm/ENGINE/VERSION/*.parquet.")
    if system is None:
        system = min(known, key=lambda one: (_apart(hardware(GPU_OF[one]), gpu), one))
    elif system not in known:
        raise no_such("measured system", system, known)
    return replace(_kernels(folder.resolve(), system, library), gpu=gpu)


@cache
def _kernels(folder: Path, system: str, library: str) -> MeasuredKernels:
    """What was measured on a system, read once; efficiencies hold for every GPU that they are applied to."""
    measured = hardware(GPU_OF[system])
    return MeasuredKernels(folder, system, measured, measured, library)


def _apart(measured: Hardware, gpu: Hardware) -> float:
    """How far two GPUs are apart: logs of their peaks, and a data centre's GPU is none of a workstation's."""
    if measured.name == gpu.name:
        return -1.0
    linked = (measured.nvlink_bytes_per_s is None) != (gpu.nvlink_bytes_per_s is None)
    bandwidth = abs(math.log(measured.bandwidth_bytes_per_s / gpu.bandwidth_bytes_per_s))
    return bandwidth + abs(math.log(measured.bf16_flops / gpu.bf16_flops)) + 2.0 * linked
