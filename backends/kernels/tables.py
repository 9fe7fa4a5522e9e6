"""Measured times of kernels in the public layout of aiconfigurator: SYSTEM/KIND/ENGINE/VERSION/NAME_perf.parquet; or a
part of them as shipped, NAME.parquet with a row group for each `system` (tools/make_kernels.py).

What is looked up is an efficiency: the shortest time that the peaks of the measured GPU permit over the measured time.
It varies little from shape to shape and from GPU to GPU, so it also serves shapes and GPUs that were not measured; what
was measured comes out as it was. All engines use the same few libraries, in versions that change by the month: of all
kernels measured for a shape the fastest counts, whichever engine's. At the end: where tables lie, and for which GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from backends.kernels.bounds import Array, Bounds, ExpertLayer, Heads
from harness.catalog import Format, Hardware, Latent, format_named, hardware
from harness.errors import UsageError, no_such

if TYPE_CHECKING:
    import pandas as pd  # heavy

Columns = dict[str, np.ndarray]
PRODUCTS = {"fp16": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4"}
EXPERTS = PRODUCTS | {
    "mxfp4": "w4a16_mxfp4", "mxfp4-fp8": "w4a8_mxfp4_mxfp8", "int4-g128": "int4_wo", "int4-g32": "int4_wo"
}  # fmt: skip
SKEW = "power_law_1.01"
"""How popular experts are where a table has several distributions: aiconfigurator's default."""
DEEPSEEK = Latent(rank=512, rope=64, nope=128, value=128, query_rank=1536)
"""The latent that all tables of latent attention were measured with."""
LAUNCH_S = 2.5e-6
"""The least time of a kernel within a CUDA graph: the smallest matrix products of H100 and B200 take 2.5 to 3 us."""
STREAMED = 0.8
"""Share of the bandwidth that a kernel reaches which only moves memory (`mem_bw_empirical_scaling_factor`, H100)."""

PCIE_REDUCE_S = 80e-6
"""What an all-reduce over PCIe takes longer in an engine than alone: 39 us of 10 KB, or 81 us by copies, between two
GPUs without peer access (sgl-project/sglang pull request 39605); 12 to 16 ms a step of some 170 all-reduces over eight
RTX PRO 6000 with it (local-inference-lab/rtx6kpro issue 25). No table has it."""

ONE_BY_ONE = 16
"""Rows up to which a product does little but read its weights. Those of a small product stay in the cache while it is
measured again and again, but not while other layers run between: it is no more efficient than the largest ones."""

GPU_OF = MappingProxyType({
    "a100_sxm": "a100-80g", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "b300_sxm": "b300",
    "gb200": "gb200", "gb300": "gb300", "l4": "l4", "l40s": "l40s", "rtx_pro_6000_server": "rtx-pro-6000",
})  # fmt: skip
"""The GPU of the catalogue that a measured system has."""


SHIPPED = Path(__file__).parent / "measured"
"""The fastest times of each kernel over all engines, at a part of the measured shapes."""
INSTALLED = "aiconfigurator"
EXCHANGED = ExpertLayer(hidden=7168, ffn=2048, routed=256, chosen=8, nodes=0)
"""The shape that exchanges of tokens between GPUs with experts were measured with, that of DeepSeek-V3: by DeepEP's
low-latency kernels over one to eight nodes, and by TensorRT-LLM's over NVLink within GB200's domain. The faster counts.
"""
NODE_GPUS = {"gb200": 4, "gb300": 4}
"""GPUs of a node where they are not eight."""
WIDE_TYPES = ("bfloat16", "fp8")
"""What TensorRT-LLM sends; exchanges of fp4 are left out, as not all models have them."""
_NEXT_FORMATS = {
    "mxfp4-fp8": ("mxfp4", "fp8-block", "bf16"), "nvfp4": ("mxfp4-fp8", "fp8-block", "fp8", "bf16"), "mxfp4": ("bf16",),
    "fp8-block": ("fp8", "bf16"), "fp8": ("fp8-block", "bf16"),
}  # fmt: skip
"""Whose efficiency serves for a format that a GPU has no kernels for: the first that there is."""
_WIDE = {"moe": ("wideep_generation_moe", "wideep_context_moe")}
"""Further tables of a kind: kernels of wide expert parallelism (DeepGEMM behind DeepEP), over the same tokens."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Log efficiency over logarithms of sizes: linear between measured points, constant beyond them."""

    axes: tuple[Array, ...]
    values: Array

    def at(self, *sizes: Array | float) -> Array:
        """The efficiency at these sizes, broadcast."""
        corners: list[tuple[tuple[Array, ...], Array]] = [((), np.ones(1))]  # places in the grid, and their weights
        for size, axis in zip(np.broadcast_arrays(*sizes), self.axes, strict=True):
            log = np.clip(np.log(np.maximum(size, 1e-9)), axis[0], axis[-1])
            below = np.clip(np.searchsorted(axis, log) - 1, 0, len(axis) - 2)
            share = (log - axis[below]) / (axis[below + 1] - axis[below])
            corners = [
                ((*place, below + step), weight * (share if step else 1 - share))
                for place, weight in corners
                for step in (0, 1)
            ]
        efficiency: Array = np.exp(sum(weight * self.values[place] for place, weight in corners))
        return efficiency


def surface(sizes: Sequence[np.ndarray], efficiency: Array) -> Surface:
    """Through points that need not fill a grid: a gap is as its neighbour, along the last axis first."""
    axes = [np.unique(points).astype(float) for points in sizes]
    grid = np.full([len(axis) for axis in axes], -np.inf)
    places = tuple(np.searchsorted(axis, points) for axis, points in zip(axes, sizes, strict=True))
    np.maximum.at(grid, places, np.log(efficiency))
    for i in reversed(range(grid.ndim)):
        lines = np.moveaxis(grid, i, -1)
        for way in (lines, lines[..., ::-1]):
            for j in range(1, way.shape[-1]):
                gap = np.isneginf(way[..., j])
                way[..., j][gap] = way[..., j - 1][gap]
    for i, axis in enumerate(axes):  # between two points
        if len(axis) == 1:
            axes[i], grid = np.array([axis[0], 2 * axis[0]]), np.repeat(grid, 2, axis=i)
    return Surface(tuple(np.log(axis) for axis in axes), grid)


@dataclass(slots=True)
class MeasuredKernels:
    """Seconds of kernels on `gpu`, with the efficiencies that were measured in `folder` for `system`, a `measured` GPU.

    Experts run in the kernels of `library`, a part of their names in the tables; by default in the fastest ones.
    Raises UsageError where no kernel of a kind was measured.
    """

    folder: Path
    system: str
    measured: Hardware
    gpu: Hardware
    library: str = ""
    _surfaces: dict[object, Surface] = field(default_factory=dict, repr=False)
    _tables: dict[tuple[str, str], Columns] = field(default_factory=dict, repr=False)

    def product_s(self, rows: Array, columns: int, inner: int, fmt: Format) -> Array:
        """(rows x inner) times (inner x columns) of weights in this format."""
        efficiency = self._surface(("product", fmt.name), lambda: self._products(fmt))
        kernel_s = Bounds(self.gpu).product_s(rows, columns, inner, fmt) / efficiency.at(rows, columns, inner)
        return kernel_s + ((self.gpu.block_scaled_s or 0.0) if fmt.name == "fp8-block" else 0.0)

    def prefill_s(self, new: Array, stored: Array, heads: Heads, kv: Format) -> Array:
        """Causal attention of `new` tokens of one prompt after `stored` ones, as efficient as that of all of them."""
        efficiency = self._surface(("prefill", heads, kv.bits), lambda: self._attention("context", "isl", heads, kv))
        return Bounds(self.gpu).prefill_s(np.ones(1), new, stored, heads, kv.bits) / efficiency.at(1.0, new + stored)

    def decode_s(self, seqs: Array, context: Array, heads: Heads, kv: Format) -> Array:
        """Attention of one new token to `context` ones in each of `seqs` sequences."""
        efficiency = self._surface(("decode", heads, kv.bits), lambda: self._attention("generation", "step", heads, kv))
        return Bounds(self.gpu).decode_s(seqs, context, heads, kv.bits) / efficiency.at(seqs, context)

    def experts_s(self, tokens: Array, layer: ExpertLayer, fmt: Format) -> Array:
        """The routed experts of one layer, without their gate."""
        efficiency = self._surface(("experts", layer, fmt.name), lambda: self._experts(layer, fmt))
        return Bounds(self.gpu).experts_s(tokens, layer, fmt) / efficiency.at(tokens)

    def all_reduce_s(self, elements: Array, gpus: int) -> Array:
        """An all-reduce in a CUDA graph: the faster of NCCL's and the engines' own."""
        if gpus == 1:
            return np.zeros_like(elements)
        custom = self._surface(("own", gpus), lambda: self._collective("custom_allreduce", "all_reduce", gpus))
        nccl = self._surface(("nccl", gpus), lambda: self._collective("nccl", "all_reduce", gpus))
        best = np.maximum(custom.at(elements), nccl.at(elements))
        measured_s, own_s = (Bounds(gpu).all_reduce_s(elements, gpus) for gpu in (self.measured, self.gpu))
        beside_s = PCIE_REDUCE_S if self.gpu.nvlink_bytes_per_s is None else 0.0
        return _over_own_link(measured_s, own_s, best) + beside_s

    def gather_s(self, elements: Array, gpus: int) -> Array:
        """An all-gather or a reduce-scatter of so many elements in all."""
        if gpus == 1:
            return np.zeros_like(elements)
        efficiency = self._surface(("gather", gpus), lambda: self._collective("nccl", "all_gather", gpus))
        measured_s, own_s = (Bounds(gpu).gather_s(elements, gpus) for gpu in (self.measured, self.gpu))
        return _over_own_link(measured_s, own_s, efficiency.at(elements))

    def exchange_s(self, tokens: Array, layer: ExpertLayer) -> Array:
        """Dispatch and combine of so many tokens of each GPU, to experts on many GPUs and back."""
        if layer.ep * layer.tp == 1:
            return np.zeros_like(tokens)
        gpus, bounds = layer.ep * layer.tp, Bounds(self.gpu)
        efficiency = self._surface("exchange", self._exchanges)
        widest = round(float(np.exp(efficiency.axes[1][-1])))
        node, between_s = self.gpu.link_gpus or gpus, np.zeros_like(tokens)
        if gpus > node and gpus > widest:  # only measured within nodes: the network at its peak beside
            between_s, layer = bounds.exchange_s(tokens, layer), replace(layer, ep=max(1, node // layer.tp))
        return between_s + bounds.exchange_s(tokens, layer) / efficiency.at(tokens, float(layer.ep * layer.tp))

    def moved_s(self, moved_bytes: Array) -> Array:
        """A kernel that only moves memory: norms, activations, rotary embeddings."""
        return LAUNCH_S + Bounds(self.gpu).moved_s(moved_bytes) / STREAMED

    def _products(self, fmt: Format) -> Surface:
        """Those of the format, or of the next one that the GPU has a table of, not only shapes at the edge of it."""
        bf16_rows = len(self._rows("gemm", "gemm", {"gemm_dtype": "bfloat16"})["m"])
        for tabled in (fmt, *map(format_named, _NEXT_FORMATS.get(fmt.name, ("bf16",)))):
            try:
                t = self._rows("gemm", "gemm", {"gemm_dtype": PRODUCTS.get(tabled.name, "")})
            except UsageError:
                continue
            if len(t["m"]) > bf16_rows / 10:
                break
        m, n, k = (t[name].astype(float) for name in ("m", "n", "k"))
        bounds = Bounds(self.measured)
        bound, streamed = bounds.product_s(m, n, k, tabled), bounds.moved_s(n * k * tabled.bits / 8)
        efficiency = bound / _seconds(t)
        if tabled.name == "fp8-block" and (late := _launched_late(t)).any():
            plain = self._surface(("product", "fp8"), lambda: self._products(format_named("fp8")))
            efficiency[late] = np.maximum(efficiency, plain.at(m, n, k))[late]
        large = streamed >= np.quantile(streamed, 0.95)
        most = float(np.quantile(efficiency[large & (m <= ONE_BY_ONE)], 0.5))
        return surface([m, n, k], np.where(streamed > bound / 2, np.minimum(efficiency, most), efficiency))

    def _experts(self, layer: ExpertLayer, fmt: Format) -> Surface:
        names = ("hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
        rows = self.rows_of("moe", "moe")
        if self.library:
            if "kernel_source" not in rows:
                raise UsageError(
                    "These tables do not tell kernels of experts apart; name aiconfigurator's: data=FOLDER."
                )
            sources = [str(kernel) for kernel in rows["kernel_source"]]
            if not any(self.library in kernel for kernel in sources):
                raise no_such("kernels of experts in these tables", self.library, set(sources))
            self._tables["moe", "moe"] = _only(rows, np.array([self.library in kernel for kernel in sources]))
        for tabled in (fmt, *map(format_named, _NEXT_FORMATS.get(fmt.name, ()))):
            try:
                t = self._rows("moe", "moe", {"moe_dtype": EXPERTS.get(tabled.name, "bfloat16")})
                break
            except UsageError as error:
                missing = error
        else:
            raise missing
        t = _nearest(t, names, (layer.hidden, layer.ffn, layer.routed, layer.chosen, layer.tp, layer.ep))
        if (usual := t["distribution"] == SKEW).any():
            t = _only(t, usual)
        tokens = t["num_tokens"].astype(float)
        measured = ExpertLayer(*(int(t[name][0]) for name in names))
        return surface([tokens], Bounds(self.measured).experts_s(tokens, measured, tabled) / _seconds(t))

    def _attention(self, phase: str, size: str, heads: Heads, kv: Format) -> Surface:
        only = {"kv_cache_dtype": "bfloat16" if kv.bits > 8 else "fp8"}
        if heads.latent is not None:
            t = _nearest(self._rows("mla", f"{phase}_mla", only), ("num_heads",), (heads.queries,))
            measured = Heads(int(t["num_heads"][0]), 1, 1, latent=DEEPSEEK)
        else:
            t = self._rows("attention", f"{phase}_attention", only | {"attn_dtype": "bfloat16"})
            t = _nearest(_nearest(t, ("head_dim",), (heads.dim,)), ("window_size",), (heads.window,))
            t["group"] = t["num_heads"] / t["num_key_value_heads"]
            t = _nearest(t, ("num_key_value_heads", "group"), (heads.stored, heads.queries / heads.stored))
            measured = Heads(
                int(t["num_heads"][0]),
                int(t["num_key_value_heads"][0]),
                int(t["head_dim"][0]),
                int(t["window_size"][0]),
            )
        if phase == "context":
            t = _only(t, t["step"] == 0)
        seqs, tokens = t["batch_size"].astype(float), t[size].astype(float)
        bounds = Bounds(self.measured)
        if phase == "context":
            bound = bounds.prefill_s(seqs, tokens, np.zeros(1), measured, kv.bits)
        else:
            bound = bounds.decode_s(seqs, tokens, measured, kv.bits)
        return surface([seqs, tokens], bound / _seconds(t))

    def _collective(self, name: str, operation: str, gpus: int) -> Surface:
        t = _nearest(self._rows("comm", name, {"op_name": operation}), ("num_gpus",), (gpus,))
        if "backend" in t:
            t = _only(t, np.array([str(backend).endswith("graph") for backend in t["backend"]]))
        if "nccl_dtype" in t:
            t = _only(t, t["nccl_dtype"] == "half")
        elements, number = t["message_size"].astype(float), int(t["num_gpus"][0])
        bounds = Bounds(self.measured)
        bound = (bounds.all_reduce_s if operation == "all_reduce" else bounds.gather_s)(elements, number)
        return surface([elements], bound / _seconds(t))

    def _exchanges(self) -> Surface:
        t = exchange_rows(self.folder, self.system)
        tokens, gpus = t["tokens"].astype(float), t["gpus"].astype(float)
        bounds, bound = Bounds(self.measured), np.zeros(len(gpus))
        for number in np.unique(gpus):
            layer = replace(EXCHANGED, ep=int(number))
            bound[gpus == number] = bounds.exchange_s(tokens[gpus == number], layer)
        return surface([tokens, gpus], bound / _seconds(t))

    def _surface(self, key: object, make: Callable[[], Surface]) -> Surface:
        if key not in self._surfaces:
            self._surfaces[key] = make()
        return self._surfaces[key]

    def _rows(self, kind: str, name: str, only: Mapping[str, str]) -> Columns:
        """The rows of all engines in which these columns have these values."""
        t = self.rows_of(kind, name)
        mask = np.ones(len(t["latency"]), bool)
        for column, value in only.items():
            mask &= t[column] == value
        if not mask.any():
            what = " and ".join(f"{column} {value}" for column, value in only.items())
            raise UsageError(f"'{self.folder / self.system / kind}' has no times of {name} with {what}.")
        return _only(t, mask)

    def rows_of(self, kind: str, name: str) -> Columns:
        """The newest file of each engine, in the columns that all of them have."""
        columns = self._tables.get((kind, name))
        if columns is None:
            columns = self._tables[kind, name] = self._read(kind, name)
        return columns

    def _read(self, kind: str, name: str) -> Columns:
        if (shipped := self.folder / f"{name}.parquet").is_file():
            return _columns(shipped, self.system)
        newest: dict[tuple[str, str], Path] = {}
        for stem in (name, *_WIDE.get(name, ())):
            for file in sorted(self.folder.glob(f"{self.system}/{kind}/*/*/{stem}_perf.parquet"), key=_version):
                newest[stem, file.parent.parent.name] = file
        if not newest:
            raise UsageError(f"'{self.folder / self.system / kind}' has no {name}_perf.parquet.")
        parts = [_columns(file) for file in newest.values()]
        names = set(parts[0]).intersection(*parts[1:])
        columns = {column: np.concatenate([part[column] for part in parts]) for column in names}
        if "head_dim" in names and "window_size" not in names:
            columns["window_size"] = np.zeros(len(columns["latency"]), int)
        return columns


def systems(folder: Path) -> list[str]:
    """The measured systems in a folder, sorted."""
    if (shipped := folder / "gemm.parquet").is_file():
        return sorted(_systems_of(shipped))
    return sorted(gemm.parent.name for gemm in folder.glob("*/gemm") if gemm.is_dir())


def _version(file: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", file.parent.name)]


def _systems_of(shipped: Path) -> list[str]:
    """The system of each row group."""
    metadata = pq.read_metadata(shipped)
    column = metadata.schema.names.index("system")
    return [metadata.row_group(i).column(column).statistics.min for i in range(metadata.num_row_groups)]


def _columns(file: Path, system: str | None = None) -> Columns:
    """The columns of a file, of one that is shipped those of a `system`."""
    try:
        groups = None if system is None else [i for i, name in enumerate(_systems_of(file)) if name == system]
        with pq.ParquetFile(file) as source:  # not read_table: it would import pyarrow.dataset
            table = source.read() if groups is None else source.read_row_groups(groups)
        columns = {name: table[name].to_numpy() for name in table.column_names}
        return _only(columns, columns["latency"] > 0)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UsageError(f"'{file}' cannot be read as times of kernels: {error}.") from None


def _only(t: Columns, mask: np.ndarray) -> Columns:
    return {name: column[mask] for name, column in t.items()}


def _nearest(t: Columns, names: Sequence[str], wanted: Sequence[float]) -> Columns:
    """The rows of the combination of these columns that is nearest, by ratios."""
    far = np.zeros(len(t["latency"]))
    for name, value in zip(names, wanted, strict=True):
        far += np.abs(np.log((t[name] + 1e-3) / (value + 1e-3)))
    first = int(np.argmin(far))
    return _only(t, np.logical_and.reduce([t[name] == t[name][first] for name in names]))


def _over_own_link(measured_s: Array, own_s: Array, efficiency: Array) -> Array:
    """Seconds over the link of a GPU, from the shortest times over the measured link and its own: the latency is that
    which was measured, only what it takes per byte is the link's."""
    return measured_s / efficiency + own_s - measured_s


def _launched_late(t: Columns) -> np.ndarray:
    """(rows,) whether a time is that of the host, which launched one kernel after the other: no shape of its source
    takes less, however small, and its kernel may be faster. In a CUDA graph, as in an engine, it is `LAUNCH_S`."""
    seconds, late = _seconds(t), np.zeros(len(t["latency"]), bool)
    sources = t.get("kernel_source", np.zeros(len(late)))
    for source in np.unique(sources):
        rows = sources == source
        least = np.quantile(seconds[rows], 0.01)
        late |= rows & (least > 2 * LAUNCH_S) & (seconds < 2 * least)
    return late


def _seconds(t: Columns) -> Array:
    seconds: Array = t["latency"].astype(float) / 1e3
    return seconds


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
    measured = [name for name in systems(folder) if name in GPU_OF]
    if not measured:
        raise UsageError(f"'{folder}' holds no tables of kernels in the layout SYSTEM/gemm/ENGINE/VERSION/*.parquet.")
    if system is None:
        system = min(measured, key=lambda one: (_apart(hardware(GPU_OF[one]), gpu), one))
    elif system not in measured:
        raise no_such("measured system", system, measured)
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


def exchange_rows(folder: Path, system: str) -> Columns:
    """`gpus`, `tokens` of each and `latency` in milliseconds. Raises UsageError where none were measured."""
    try:
        if (shipped := folder / "exchange.parquet").is_file():
            columns = _columns(shipped, system)
        else:
            columns = _fastest(folder / system / "comm", system)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UsageError(f"'{folder}' cannot be read as times of exchanges: {error}.") from None
    if not len(columns["latency"]):
        raise UsageError(f"'{folder}' has no times of exchanges on {system}.")
    return columns


def _fastest(comm: Path, system: str) -> Columns:
    """Of the tables of both, over all of their versions."""
    import pandas as pd  # heavy: only for tables that are not shipped

    parts = [*_deepep(comm, system), *_tensorrt(comm)]
    if not parts:
        return {name: np.zeros(0) for name in ("gpus", "tokens", "latency")}
    t = pd.concat(parts).groupby(["gpus", "tokens"])["latency"].min().reset_index()
    return {name: t[name].to_numpy() for name in ("gpus", "tokens", "latency")}


def _deepep(comm: Path, system: str) -> list[pd.DataFrame]:
    import pandas as pd  # heavy

    frames = []
    for file in sorted(comm.glob("*/*/wideep_deepep_ll_perf.parquet")):
        t = pd.read_parquet(file)
        t = t[
            (t["hidden_size"] == EXCHANGED.hidden)
            & (t["num_topk"] == EXCHANGED.chosen)
            & (t["num_experts"] == EXCHANGED.routed)
        ]
        frames.append(pd.DataFrame({
            "gpus": t["node_num"] * NODE_GPUS.get(system, 8), "tokens": t["num_token"],
            "latency": (t["dispatch_avg_t_us"] + t["combine_avg_t_us"]) / 1e3,
        }))  # fmt: skip
    return frames


def _tensorrt(comm: Path) -> list[pd.DataFrame]:
    import pandas as pd  # heavy

    frames = []
    for file in sorted(comm.glob("*/*/trtllm_alltoall_perf.parquet")):
        t = pd.read_parquet(file)
        wide = t["moe_dtype"].isin(WIDE_TYPES) & (t["op_name"] != "alltoall_combine_low_precision")
        names = ["kernel_source", "moe_dtype", "moe_ep_size", "num_tokens"]
        steps = t[wide].groupby([*names, "op_name"])["latency"].min().groupby(names).sum().reset_index()
        renamed = steps.rename(columns={"moe_ep_size": "gpus", "num_tokens": "tokens"})
        frames.append(renamed[["gpus", "tokens", "latency"]])
    return frames
