"""Steps from measured kernels: `backends.kernels` and the latency model `operators:data=FOLDER`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backends.kernels.bounds import Bounds, ExpertLayer, Heads
from backends.kernels.steps import TOKENS, Steps
from backends.kernels.tables import GPU_OF, SHIPPED, MeasuredKernels, measured_kernels, systems
from harness.catalog import Shape, format_named, hardware, model, parameters, weight_bytes
from harness.errors import UsageError
from harness.registry import make
from tests.theory.loads import loads_of

H100, BF16 = hardware("h100"), format_named("bf16")
EFFICIENCY = 0.5
MODELS = ("llama3.1-70b", "qwen3-32b", "gpt-oss-120b", "deepseek-r1", "qwen3-235b-a22b", "llama2-7b", "gemma3-27b")
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "operators"


def write(folder: Path, kind: str, name: str, columns: dict[str, object]) -> None:
    """One table of the public layout; `seconds` becomes its milliseconds."""
    file = folder / "h100_sxm" / kind / "vllm" / "0.1.0" / f"{name}_perf.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    seconds = np.asarray(columns.pop("seconds"), float)
    rows = {key: np.broadcast_to(value, seconds.shape) for key, value in columns.items()}
    pq.write_table(
        pa.table({key: pa.array(list(value)) for key, value in rows.items()} | {"latency": 1e3 * seconds}), file
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Tables of an H100 on which every kernel takes twice as long as its peaks permit."""
    bounds, heads = Bounds(H100), Heads(8, 2, 128)
    m, n, k = (one.ravel().astype(float) for one in np.meshgrid([1, 64, 4096], [256, 8192], [256, 8192]))
    slow = 1 / EFFICIENCY
    write(tmp_path, "gemm", "gemm", {
        "gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "seconds": slow * bounds.product_s(m, n, k, BF16),
    })  # fmt: skip
    size, tokens = (one.ravel().astype(float) for one in np.meshgrid([1, 64], [128, 8192]))
    attention = {"num_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "window_size": 0, "attn_dtype": "bfloat16",
                 "kv_cache_dtype": "bfloat16", "batch_size": size}  # fmt: skip
    prefill_s = bounds.prefill_s(size, tokens, np.zeros(1), heads, 16)
    write(tmp_path, "attention", "context_attention", attention | {
        "isl": tokens, "step": 0, "seconds": slow * prefill_s,
    })  # fmt: skip
    write(tmp_path, "attention", "generation_attention", attention | {
        "step": tokens, "seconds": slow * bounds.decode_s(size, tokens, heads, 16),
    })  # fmt: skip
    layer = ExpertLayer(4096, 14336, 8, 2)
    tokens = np.array([1.0, 64, 4096])
    write(tmp_path, "moe", "moe", {
        "moe_dtype": "bfloat16", "hidden_size": 4096, "inter_size": 14336, "num_experts": 8, "topk": 2,
        "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced", "num_tokens": tokens,
        "seconds": slow * bounds.experts_s(tokens, layer, BF16),
    })  # fmt: skip
    elements = np.array([1024.0, 1e6])
    for name, operation in (("custom_allreduce", "all_reduce"), ("nccl", "all_reduce")):
        write(tmp_path, "comm", name, {
            "op_name": operation, "num_gpus": 2, "message_size": elements,
            "seconds": slow * bounds.all_reduce_s(elements, 2),
        })  # fmt: skip
    return tmp_path


def test_what_was_measured_comes_out_as_it_was_and_other_shapes_are_as_efficient(folder: Path) -> None:
    """A table of kernels holds for the shapes in it, between them and beyond them."""
    kernels, bounds = measured_kernels(str(folder), None, H100), Bounds(H100)

    for rows in (1.0, 33.0, 4096.0, 100_000.0):
        at = np.array([rows])
        assert bounds.product_s(at, 5120, 3072, BF16) / EFFICIENCY == pytest.approx(
            kernels.product_s(at, 5120, 3072, BF16)
        )
        assert bounds.decode_s(at, 777.0, Heads(16, 4, 128), 16) / EFFICIENCY == pytest.approx(
            kernels.decode_s(at, np.array([777.0]), Heads(16, 4, 128), BF16)
        )
        layer = ExpertLayer(2048, 768, 128, 8, 2, 4)
        assert bounds.experts_s(at, layer, BF16) / EFFICIENCY == pytest.approx(kernels.experts_s(at, layer, BF16))
        assert bounds.all_reduce_s(at, 4) / EFFICIENCY == pytest.approx(kernels.all_reduce_s(at, 4))


def test_a_gpu_that_was_not_measured_has_the_efficiency_of_the_nearest_and_peaks_of_its_own(folder: Path) -> None:
    """An MI300X reads its memory 1.58 times as fast as an H100, so a product of one row takes so much less."""
    amd, rows = hardware("mi300x"), np.ones(1)
    ratio = measured_kernels(str(folder), None, H100).product_s(rows, 8192, 8192, BF16) / measured_kernels(
        str(folder), None, amd
    ).product_s(rows, 8192, 8192, BF16)

    assert amd.bandwidth_bytes_per_s / H100.bandwidth_bytes_per_s == pytest.approx(float(ratio[0]))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("llama3.1-70b", Shape(2, 1)),
        ("mixtral-8x7b", Shape(1, 1, 2, 2)),
        ("gpt-oss-20b", Shape(1)),
        ("gemma3-12b", Shape(2)),
    ],
)
def test_parts_add_up_and_more_work_takes_longer(folder: Path, name: str, shape: Shape) -> None:
    """A step is its projections, experts, exchanges and norms; none of them shrinks with more tokens."""
    m = model(name)
    kernels = measured_kernels(str(folder), None, H100)
    if shape.dp > 1:
        pytest.skip("the tables of this test have no gathers") if not (SHARED / "h100_sxm").is_dir() else None
        kernels = measured_kernels(str(SHARED), None, H100)
    grids = Steps(m, shape, replace(m.formats, experts="bf16", kv="bf16"), kernels).grids()
    parts = sum(grids[f"{part}_s"] for part in ("linear", "experts", "communication", "other"))

    np.testing.assert_allclose(grids["dense_s"], parts, rtol=1e-12)
    assert (grids["experts_s"] > 0).all() == (m.experts is not None)
    assert (grids["communication_s"] > 0).all() == (shape.stage_gpus > 1)
    assert (grids["dense_s"] > 0.5 * np.maximum.accumulate(grids["dense_s"])).all()
    assert (grids["decode_s"] > 0.5 * np.maximum.accumulate(grids["decode_s"], axis=1)).all()


def test_stages_share_the_layers(folder: Path) -> None:
    """Each of two stages takes half as long over its layers; a head is whole."""
    m, kernels = model("llama3.1-70b"), measured_kernels(str(folder), None, H100)
    one, two = (Steps(m, Shape(1, pp), m.formats, kernels).grids() for pp in (1, 2))

    np.testing.assert_allclose(one["dense_s"], 2 * two["dense_s"])
    np.testing.assert_allclose(one["head_s"], two["head_s"])


def test_windows_make_long_contexts_cheap(folder: Path) -> None:
    """Half of gpt-oss's layers see 128 tokens: reading 8,192 takes a good half of what it takes without windows."""
    m, kernels = model("gpt-oss-20b"), measured_kernels(str(folder), None, H100)
    seqs, context = np.array([64.0]), np.array([8192.0])
    windowed, full = (
        Steps(one, Shape(1), m.formats, kernels).decode_s(seqs, context)[0] for one in (m, replace(m, window=None))
    )

    assert (8193 + 129) / (2 * 8193) == pytest.approx(windowed / full)


def test_the_latency_model_is_the_sum_of_its_grids(folder: Path) -> None:
    """At points of the grid a step is dense + head + attention + host, and the arithmetic of its prompts more."""
    spec = f"operators:data={folder},seq_s=1e-5,overhead_s=0.001,prefill_scale=1.5"
    built = make("latency", spec, model="llama3.1-8b", hardware="h100")
    grids = Steps(
        model("llama3.1-8b"), Shape(), model("llama3.1-8b").formats, measured_kernels(str(folder), None, H100)
    ).grids()
    at = list(TOKENS).index(16)
    d, c = list(grids["decode_seqs"]).index(16), list(grids["decode_context"]).index(1024)
    decode_s = grids["dense_s"][at] + grids["head_s"][4] + grids["decode_s"][d, c]
    k = list(TOKENS).index(1024)
    attention_s = grids["prefill_s"][list(grids["chunk"]).index(1024), 0]
    arithmetic_s = grids["dense_s"][list(TOKENS).index(2048)] / 2 + attention_s
    prompt_s = grids["dense_s"][k] + grids["head_s"][0] + attention_s + 0.5 * arithmetic_s

    assert 0.001 + 16e-5 + decode_s == pytest.approx(built.decode_s(16, 16 * 1024))
    assert 0.001 + 1e-5 + prompt_s == pytest.approx(built.step_s([(1024, 0)], 0, 0))


@pytest.mark.parametrize(("name", "tp"), [("llama3.1-70b", 4), ("llama3.1-8b", 1), ("deepseek-r1", 8)])
@pytest.mark.parametrize("decodes", [1, 7, 84, 300])
def test_one_cached_token_of_a_prompt_costs_next_to_nothing(name: str, tp: int, decodes: int) -> None:
    """A factor for prompts that touched the decodes of their step made full batches a quarter too slow."""
    built = make("latency", "operators", model=name, hardware="h100", tp=tp)
    with_one_s = built.step_s([(1, 999)], decodes, 900 * decodes)

    assert built.decode_s(decodes, 900 * decodes) < with_one_s < 1.03 * built.decode_s(decodes + 1, 900 * decodes)


def test_an_all_reduce_over_pcie_costs_more_than_alone() -> None:
    """Two GPUs on PCIe exchange twice a layer; boards with NVLink have no such term."""
    over_pcie, over_nvlink = (measured_kernels(None, None, hardware(name)) for name in ("rtx-pro-6000", "h100"))
    elements = np.array([5120.0])

    assert 80e-6 < over_pcie.all_reduce_s(elements, 2) < 90e-6
    assert over_nvlink.all_reduce_s(elements, 2) < 10e-6
    assert 0 == over_pcie.all_reduce_s(elements, 1)


def test_a_time_of_the_host_is_no_time_of_a_kernel(folder: Path) -> None:
    """Small block-scaled products that no shape undercuts were waiting for their launch: fp8's efficiency counts."""
    m, n, k = (one.ravel().astype(float) for one in np.meshgrid([1, 64], [256, 8192, 65536], [256, 8192, 16384]))
    fp8, block = format_named("fp8"), format_named("fp8-block")
    alone_s = 2 * Bounds(H100).product_s(m, n, k, fp8)
    dtypes = np.repeat(["bfloat16", "fp8", "fp8_block"], len(m))
    write(folder, "gemm", "gemm", {
        "gemm_dtype": dtypes, "m": np.tile(m, 3), "n": np.tile(n, 3), "k": np.tile(k, 3), "kernel_source": dtypes,
        "seconds": np.concatenate([alone_s, alone_s, np.maximum(alone_s, 170e-6)]),
    })  # fmt: skip
    kernels, one = measured_kernels(str(folder), None, H100), np.ones(1)

    for columns, inner in ((256, 256), (65536, 16384)):
        fp8_s = kernels.product_s(one, columns, inner, fp8)
        assert fp8_s == pytest.approx(kernels.product_s(one, columns, inner, block), rel=1e-2)


def test_kernels_of_amd_have_gaps_between_them() -> None:
    """Of a HIP graph every kernel costs more: the steps of a small batch are longer than memory and peaks make them."""
    m = model("deepseek-r1")
    amd = hardware("mi300x")
    plain, gaps = (
        Steps(m, Shape(8), m.formats, measured_kernels(None, None, gpu))
        for gpu in (replace(amd, kernel_gap_s=None, block_scaled_s=None), amd)
    )
    few = np.array([8.0])

    assert plain.launches * 3.9e-6 == pytest.approx(float((gaps.other_s(few) - plain.other_s(few))[0]))
    products = 4 * m.layers + 2 * m.dense_layers
    assert products * 24e-6 == pytest.approx(float((gaps.linear_s(few) - plain.linear_s(few))[0]), rel=1e-6)


def test_a_step_with_prompts_takes_at_least_the_launches_of_its_kernels(folder: Path) -> None:
    """A dense layer in BF16 on one GPU has ten kernels; long prompts hide their launches, CUDA graphs have none."""
    launched, free = (
        make("latency", f"operators:data={folder},seq_s=0,launch_s={one}", model="llama3.1-8b", hardware="h100")
        for one in ("0.001", "0")
    )

    assert 32 * 10 * 1e-3 == pytest.approx(launched.step_s([(513, 0)], 0, 0))
    assert free.step_s([(512, 0)], 0, 0) == launched.step_s([(512, 0)], 0, 0) < 0.32
    assert free.step_s([(131072, 0)], 0, 0) == launched.step_s([(131072, 0)], 0, 0) > 0.32
    assert free.decode_s(16, 1024) == launched.decode_s(16, 1024)
    parts = launched.step_parts(loads_of(([(513, 0)], 0, 0), ([(500, 0)], 12, 9000), ([(501, 0)], 12, 9000)))
    steps = [launched.step_s(*one) for one in (([(513, 0)], 0, 0), ([(500, 0)], 12, 9000), ([(501, 0)], 12, 9000))]
    assert steps == pytest.approx(sum(parts).tolist())
    assert 0.32 == steps[2] > steps[1]


def test_decodes_beside_prompts_take_longer_where_one_kernel_runs_both() -> None:
    """FlashAttention-2, on GPUs without NVLink: without it vLLM on RTX PRO 6000 came out 9 % too fast."""
    alone, beside = (
        make("latency", f"operators:prefill_scale=1,launch_s=0,seq_s=0,mixed_decode={one}", model="llama3.1-8b",
             hardware="rtx-pro-6000") for one in (1, 2)
    )  # fmt: skip
    step = [(300, 0)], 64, 64 * 1000
    attention_s = alone.step_parts(loads_of(([], 64, 64000))).attention_s[0]

    assert make("latency", "operators", model="llama3.1-8b", hardware="rtx-pro-6000").mixed_decode == 2
    assert make("latency", "operators", model="llama3.1-8b", hardware="h100").mixed_decode is None
    assert attention_s == pytest.approx(beside.step_s(*step) - alone.step_s(*step))
    assert beside.step_s(*step) == pytest.approx(sum(beside.step_parts(loads_of(step)))[0])
    assert alone.decode_s(64, 64000) == beside.decode_s(64, 64000)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public tables of kernels are not here")
def test_experts_run_in_the_kernels_of_the_engine_that_is_named() -> None:
    """vLLM ran Triton's kernels where the newest tables have FlashInfer's: Qwen3-30B-A3B came out 22 % too fast."""
    slow, fast = (
        make("latency", f"operators:data={SHARED},dp=2,ep=2,expert_kernels={name}", model="qwen3-30b-a3b",
             hardware="rtx-pro-6000").decode_s(128, 128000) for name in ("triton", "cutlass")
    )  # fmt: skip

    assert slow > 1.1 * fast
    with pytest.raises(UsageError, match="No kernels of experts in these tables named 'tritn'"):
        make("latency", f"operators:data={SHARED},expert_kernels=tritn", model="qwen3-30b-a3b", hardware="rtx-pro-6000")
    with pytest.raises(UsageError, match="do not tell kernels of experts apart"):
        make("latency", "operators:expert_kernels=triton", model="qwen3-30b-a3b", hardware="rtx-pro-6000")


def test_a_small_product_is_no_faster_than_memory_on_a_gpu_with_a_large_cache() -> None:
    """Weights of an RTX PRO 6000 stay in its cache while one product is measured again and again."""
    gpu = hardware("rtx-pro-6000")
    seconds = measured_kernels(None, None, gpu).product_s(np.ones(1), 4096, 4096, format_named("bf16"))[0]

    assert 4096 * 4096 * 2 / gpu.bandwidth_bytes_per_s < seconds


def test_formats_change_what_is_read_and_what_is_stored(folder: Path) -> None:
    """KV in FP8 is counted with 8 bits; without a format the model's own are counted."""
    spec = f"operators:data={folder},kv=fp8"

    with pytest.raises(UsageError, match="no times of generation_attention with kv_cache_dtype fp8"):
        make("latency", spec, model="llama3.1-8b", hardware="h100")
    assert (None, None) == make("latency", f"operators:data={folder}", model="llama3.1-8b", hardware="h100").stored_bits


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("operators:data={folder},system=h200_sxm", "No measured system named 'h200_sxm'"),
        ("operators:data={folder},linear=fp9", "No format named 'fp9'"),
        ("operators:data={folder},dp=2,ep=3", "ep=3"),
    ],
)
def test_wrong_use_is_one_sentence(folder: Path, spec: str, message: str) -> None:
    """What is missing is named."""
    with pytest.raises(UsageError, match=message):
        make("latency", spec.format(folder=folder), model="llama3.1-8b", hardware="h100")


def test_shipped_tables_have_a_part_for_each_system() -> None:
    """A command would read the times of nine GPUs, or miss those of its own."""
    for file in SHIPPED.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        column = metadata.schema.names.index("system")
        parts = [metadata.row_group(i).column(column).statistics for i in range(metadata.num_row_groups)]

        assert [part.max for part in parts] == [part.min for part in parts] == sorted({part.min for part in parts})


@pytest.mark.parametrize("system", systems(SHIPPED))
def test_shipped_kernels_serve_every_model_of_the_catalogue(system: str) -> None:
    """A step of decodes takes at least as long as reading its weights, and no longer than ten times."""
    gpu = hardware(GPU_OF[system])
    for name in MODELS:
        m = model(name)
        steps = Steps(m, Shape(8), m.formats, MeasuredKernels(SHIPPED, system, gpu, gpu))
        tokens = np.array([512.0])  # so many meet nearly all experts
        step_s = float(steps.linear_s(tokens)[0] + steps.experts_s(tokens)[0])
        least_s = weight_bytes(m) / 8 / gpu.bandwidth_bytes_per_s
        assert 0.8 * least_s < step_s < 10 * max(least_s, 2 * parameters(m) * 512 / 8 / gpu.bf16_flops), name


@pytest.mark.parametrize(
    "system", [pytest.param(s, marks=pytest.mark.nightly) for s in ("b200_sxm", "gb200", "h100_sxm", "h200_sxm")]
)
def test_shipped_kernels_are_those_that_were_measured(system: str) -> None:
    """Steps of models, half of whose kernels lie between the shapes that are shipped, within some percent."""
    if not SHARED.is_dir():
        pytest.skip("the measured kernels are not here")
    gpu, apart = hardware(GPU_OF[system]), []
    for name in MODELS:
        m = model(name)
        ours, theirs = (
            Steps(m, Shape(4), m.formats, MeasuredKernels(folder, system, gpu, gpu)) for folder in (SHIPPED, SHARED)
        )
        seqs, context = np.array([4.0, 16, 48, 200]), np.array([900.0, 3000])
        apart += [
            np.log((getattr(ours, steps)(seqs) + 1e-6) / (getattr(theirs, steps)(seqs) + 1e-6))
            for steps in ("linear_s", "experts_s", "communication_s")
        ]
        apart.append(np.log(ours.decode_s(seqs[:, None], context) / theirs.decode_s(seqs[:, None], context)).ravel())
    every = np.abs(np.concatenate(apart))
    assert np.median(every) < 0.02
    assert np.percentile(every, 90) < 0.15  # newer engines and versions are in one folder than in the other


def test_a_gather_between_nodes_takes_the_network() -> None:
    """Two nodes of H100 would cost no more than one of sixteen GPUs with NVLink."""
    elements = np.array([1e6])
    node_s = float(Bounds(H100).gather_s(elements, 8)[0])
    network_s = 0.5 * 2e6 / 8 / 50e9  # half of it from the other node, an eighth over the adapter of each GPU

    assert float(Bounds(H100).gather_s(elements, 16)[0]) == pytest.approx(node_s + network_s)


def test_tokens_visit_no_more_nodes_than_routing_permits() -> None:
    """DeepSeek-V3 routes a token to four of eight nodes; without the limit the network would have more to send."""
    tokens, free = np.array([1024.0]), ExpertLayer(7168, 2048, 256, 8, 1, 64)
    limited = replace(free, nodes=4)
    sent_s = 2 * 1024 * 7168 * 2 * 4 * (7 / 8) / 50e9

    assert float(Bounds(H100).exchange_s(tokens, limited)[0]) == pytest.approx(sent_s)
    assert Bounds(H100).exchange_s(tokens, free)[0] > sent_s


def test_skew_lengthens_the_fullest_part() -> None:
    """Steps wait for the GPU with the most popular experts."""
    tokens, even = np.array([16384.0]), ExpertLayer(7168, 2048, 256, 8, 1, 32)
    bound = Bounds(H100)

    assert bound.experts_s(tokens, replace(even, skew=1.5), BF16)[0] == pytest.approx(
        1.5 * bound.experts_s(tokens, even, BF16)[0]
    )
    with pytest.raises(UsageError, match="skew"):
        make("latency", "operators:skew=0.5", model="deepseek-r1", hardware="gb200", tp=8)


def test_wide_experts_are_exchanged_not_gathered() -> None:
    """48 GPUs that each got all tokens of the others made a step of GB200 twice as long as measured."""
    wide = Shape(1, 1, 48, 48)
    kernels, m = measured_kernels(None, None, hardware("gb200")), model("deepseek-r1")
    tokens = np.array([1024.0])
    gathered = m.layers * 2 * kernels.gather_s(tokens * m.hidden, 48)

    assert Steps(m, wide, m.formats, kernels).communication_s(tokens)[0] < gathered[0] / 2
