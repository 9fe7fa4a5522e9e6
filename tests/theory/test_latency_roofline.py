"""The roofline by hand."""

import pytest

from backends.latency.roofline import Roofline
from harness import catalog
from harness.registry import make

IDEAL = {"memory_share": 1.0, "flops_share": 1.0, "link_share": 1.0, "overhead_s": 0.0}


def _gemm_s(model: Roofline, rows: int, inner: int, columns: int) -> float:
    """Seconds of (rows x inner) times (inner x columns), none of it quantised."""
    return model._product_s(rows, inner, columns, 1, model._parts["linear"])


def test_one_matrix_product_by_hand() -> None:
    """A GEMM takes the longer of its FLOPs over the peak and its bytes over the bandwidth."""
    model = Roofline("opt-13b", "a100-80g", **IDEAL)  # type: ignore[arg-type]  # all floats

    assert pytest.approx(_gemm_s(model, 1, 5120, 5120)) == 2 * (1 * 5120 + 5120 * 5120 + 1 * 5120) / 2.039e12
    assert pytest.approx(_gemm_s(model, 4096, 5120, 5120)) == 2 * 4096 * 5120 * 5120 / 312e12


@pytest.mark.parametrize(("hardware", "dtype_bytes", "rows", "ridge"), [("h800", 1, 363, 590.7), ("h20", 1, 38, 74.0)])
def test_fewest_rows_that_are_compute_bound(hardware: str, dtype_bytes: int, rows: int, ridge: float) -> None:
    """For DeepSeek-V3's experts (7168 x 2048, fp8) an H800 needs 363 rows, an H20 38 (K11, exact mode)."""
    model = Roofline("llama2-7b", hardware, dtype_bytes=dtype_bytes, **IDEAL)  # type: ignore[arg-type]  # all floats
    gpu = catalog.hardware(hardware)

    def arithmetic_s(m: int) -> float:
        return 2 * m * 7168 * 2048 / gpu.peak_flops(dtype_bytes)

    assert ridge == pytest.approx(gpu.peak_flops(dtype_bytes) / gpu.bandwidth_bytes_per_s, abs=0.05)
    assert _gemm_s(model, rows, 7168, 2048) == pytest.approx(arithmetic_s(rows), rel=1e-12)
    assert _gemm_s(model, rows - 1, 7168, 2048) > arithmetic_s(rows - 1)


def test_intensity_of_expert_products() -> None:
    """FLOP per byte of M x 7168 x 2048 in fp8: 504.9, 497.8, 78.0, and 3185.8 in the limit (K11.a)."""

    def intensity(m: int) -> float:
        n, k = 7168, 2048
        return 2 * m * n * k / (m * k + n * k + m * n)

    assert [round(intensity(m), 1) for m in (300, 295, 40)] == [504.9, 497.8, 78.0]
    assert round(intensity(10**12), 1) == 3185.8


def test_decoding_one_token_reads_all_weights_and_the_cache_once() -> None:
    """The smallest decode step is bound by memory: weights, cached tokens and a few activations."""
    m, gpu = catalog.model("llama2-7b"), catalog.hardware("a100-80g")
    model = Roofline(**IDEAL)  # type: ignore[arg-type]  # all floats
    weights = catalog.weight_bytes(m) - 2 * m.embedding  # one row of the input embedding is read, not all

    expected_s = (weights + 1000 * catalog.kv_bytes_per_token(m)) / gpu.bandwidth_bytes_per_s

    assert expected_s == pytest.approx(model.decode_s(1, 1000), rel=1e-2)


def test_a_long_prompt_takes_its_arithmetic() -> None:
    """Prefill of 8192 tokens is bound by FLOPs: 2 per parameter and token, and causal attention."""
    m, gpu = catalog.model("llama2-7b"), catalog.hardware("a100-80g")
    model = Roofline(**IDEAL)  # type: ignore[arg-type]  # all floats
    dense = 2 * 8192 * m.layers * (m.attention_matrix() + m.ffn_matrix)
    attention = 4 * m.layers * m.hidden * 8192 * 8193 / 2

    assert (dense + attention) / gpu.bf16_flops == pytest.approx(model.step_s([(8192, 0)], 0, 0), rel=1e-2)


def test_paged_kv_makes_attention_of_prompts_dearer_and_nothing_else() -> None:
    """vAttention's gain would be charged to decodes or to products, which paging leaves alone."""
    plain, paged = (make("latency", f"roofline:paged_prefill={times}") for times in (1, 1.5))
    prompt = plain.step_s([(4096, 0)], 0, 0)

    assert plain.decode_s(8, 9000) == paged.decode_s(8, 9000)
    assert pytest.approx(prompt + 0.5 * plain.attention_s(4096, 0)) == paged.step_s([(4096, 0)], 0, 0)


def test_attention_of_chunks_is_the_attention_of_the_whole() -> None:
    """Cutting a long prompt must not change the arithmetic of its attention."""
    model = Roofline("llama3-8b", "h100")

    chunked_s = sum(model.attention_s(512, p) for p in range(0, 8192, 512))

    assert model.attention_s(8192, 0) == pytest.approx(chunked_s, rel=1e-9)


def test_a_decode_is_a_piece_of_one_token() -> None:
    """Prefill and decode are one: a piece of one token after p costs what a decode of context p costs."""
    model = Roofline("llama3-8b", "h100")

    assert model.decode_s(1, 3000) == pytest.approx(model.step_s([(1, 3000)], 0, 0), rel=1e-12)


def test_tensor_parallelism_divides_the_work_and_adds_all_reduces() -> None:
    """Two all-reduces a layer, each sending 2 (tp - 1) / tp of the activations over the link."""
    one, four = Roofline("llama2-70b", "h100"), Roofline("llama2-70b", "h100", tp=4)
    sent_bytes = 2 * 3 / 4 * 4096 * 8192 * 2

    assert one.allreduce_s(4096) == 0.0
    assert sent_bytes / (450e9 * 0.6) == pytest.approx(four.allreduce_s(4096))
    assert one.layers_s(4096) / 4 + 160 * four.allreduce_s(4096) == pytest.approx(four.layers_s(4096), rel=2e-2)


def test_pipeline_stages_divide_the_layers() -> None:
    """The time of a stage is that of its share of the layers, plus head and host."""
    one, two = Roofline("llama2-13b", overhead_s=0.0), Roofline("llama2-13b", pp=2, overhead_s=0.0)

    assert one.layers_s(512) / 2 == pytest.approx(two.layers_s(512))
    assert one.decode_s(8, 4096) / 2 < two.decode_s(8, 4096) < one.decode_s(8, 4096)


def test_fp8_halves_memory_traffic() -> None:
    """Weights and KV of one byte are read in half the time."""
    two, one = (make("latency", f"roofline:hardware=h100,dtype_bytes={b},overhead=0") for b in (2, 1))

    assert two.decode_s(8, 8000) / 2 == pytest.approx(one.decode_s(8, 8000))


def test_host_costs_are_added_once_a_step_and_once_a_sequence() -> None:
    """The overhead of the host is per step, seq_s per running sequence."""
    bare, full = make("latency", "roofline:overhead=0"), make("latency", "roofline:overhead=5ms,seq=0.2ms")

    assert pytest.approx(full.decode_s(7, 700) - bare.decode_s(7, 700)) == 5e-3 + 7 * 0.2e-3


@pytest.mark.parametrize(("name", "pp", "host_s"), [("llama3.1-70b", 1, 7.81e-3), ("llama3.1-8b", 1, 3.12e-3),
                                                    ("llama3.1-70b", 2, 3.9e-3)])  # fmt: skip
def test_the_host_takes_time_for_each_layer_not_the_same_for_every_model(name: str, pp: int, host_s: float) -> None:
    """7.81 ms a step, found on 80 layers, doubled the TPOT of a model of 36."""
    plain, bare = Roofline(name, "h100", pp=pp), Roofline(name, "h100", pp=pp, overhead_s=0.0)

    assert host_s == pytest.approx(plain.decode_s(4, 400) - bare.decode_s(4, 400), rel=2e-3)


def test_experts_are_read_when_they_are_met() -> None:
    """One token of Mixtral reads 2 of 8 experts, a few hundred read all: a decode step reads accordingly (K11)."""
    m, gpu = catalog.model("mixtral-8x22b"), catalog.hardware("h200")
    model = Roofline("mixtral-8x22b", "h200", **IDEAL)  # type: ignore[arg-type]  # all floats
    resident = catalog.weight_bytes(m) - 2 * m.embedding  # one row of the input embedding is read, not all
    experts = 2 * m.layers * m.expert_matrix

    def read_bytes(seqs: int) -> float:
        return model.decode_s(seqs, 0) * gpu.bandwidth_bytes_per_s

    assert resident - 6 * experts == pytest.approx(read_bytes(1), rel=1e-3)
    assert resident - 8 * 0.75**16 * experts == pytest.approx(read_bytes(16), rel=1e-2)


def test_a_latent_cache_is_read_whole_by_every_gpu() -> None:
    """DeepSeek-V3 keeps 70,272 B a token, and tensor parallelism does not divide them."""
    alone, eight = (
        Roofline("deepseek-v3", "h200", tp=tp, kv_bits=16, **IDEAL)  # type: ignore[arg-type]  # all floats
        for tp in (8, 16)
    )

    assert 70_272 / 4.8e12 == pytest.approx(eight.decode_line(1)[1])
    assert alone.decode_line(1)[1] >= eight.decode_line(1)[1]


def test_fewer_bits_are_read_faster_and_computed_as_fast() -> None:
    """Four bits a weight shorten a small decode by almost four and a long prompt not at all."""
    plain, packed = (
        Roofline("llama2-70b", "h100", weight_bits=bits, **IDEAL)  # type: ignore[arg-type]  # all floats
        for bits in (None, 4.125)
    )

    assert 16 / 4.125 == pytest.approx(plain.layers_s(1) / packed.layers_s(1), rel=1e-2)
    assert plain.layers_s(8192) == packed.layers_s(8192)
