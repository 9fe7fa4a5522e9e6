"""KV sizes, parameters and capacities of the catalogue against published numbers."""

import pytest

from harness import catalog
from harness.errors import UsageError

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("opt-13b", 819_200),
        ("opt-66b", 2_359_296),
        ("opt-175b", 4_718_592),
        ("llama3-70b", 327_680),
        ("yi-34b", 245_760), ("deepseek-v3", 70_272), ("falcon-180b", 163_840), ("mixtral-8x22b", 229_376),
    ],
)  # fmt: skip
def test_kv_bytes_per_token(name: str, expected: int) -> None:
    """A wrong size per token would scale every memory limit of the simulator (E1, K10.a)."""
    assert expected == catalog.kv_bytes_per_token(catalog.model(name))


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x22b", 39.2), ("deepseek-v3", 37.6), ("qwen3-235b-a22b", 22.2)]
)
def test_a_token_meets_few_experts(name: str, billions: float) -> None:
    """The arithmetic of a step would count experts that no token chose (makers say 39, 37 and 22 billion)."""
    assert billions == round(catalog.active_parameters(catalog.model(name)) / 1e9, 1)


def test_quantised_weights_leave_more_room_for_kv() -> None:
    """Often the larger effect of quantisation in serving: 4.125 bits a weight, not 16, on a GPU of 24 GB."""
    plain, packed = (catalog.kv_capacity_blocks("llama3-8b", "rtx-4090", weight_bits=bits) for bits in (None, 4.125))
    llama = catalog.model("llama3-8b")
    matrices = llama.layers * (llama.attention_matrix() + llama.ffn_matrix)

    assert (16 - 4.125) / 8 * matrices // catalog.block_bytes(llama) == packed - plain


def test_hand_off_of_512_tokens_of_opt_66b() -> None:
    """512 tokens of OPT-66B are 1.125 GiB; ten a second fill 96.6 Gbps, not the printed 90 (E2, K10.b)."""
    kv_bytes = 512 * catalog.kv_bytes_per_token(catalog.model("opt-66b"))

    assert kv_bytes == 1_207_959_552
    assert kv_bytes == 1.125 * GIB
    assert round(10 * kv_bytes * 8 / 1e9, 1) == 96.6


@pytest.mark.parametrize(("name", "gib"), [("opt-13b", 0.39), ("opt-66b", 1.125), ("opt-175b", 2.25)])
def test_kv_of_512_tokens(name: str, gib: float) -> None:
    """The hand-off sizes that DistServe reports would not come out (K10.a)."""
    kv_bytes = 512 * catalog.kv_bytes_per_token(catalog.model(name))

    assert gib == pytest.approx(kv_bytes / GIB, abs=0.005)


@pytest.mark.parametrize(
    ("name", "gib", "slots"), [("opt-13b", 12, 15_728), ("opt-66b", 21, 9_557), ("opt-175b", 264, 60_074)]
)
def test_slots_of_vllm_table_1(name: str, gib: int, slots: int) -> None:
    """The KV slots of vLLM's table 1 read its GB as GiB; another reading would miss them (E3)."""
    assert slots == gib * GIB // catalog.kv_bytes_per_token(catalog.model(name))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("opt-13b", 12_853_473_280), ("llama2-7b", 6_738_415_616), ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192), ("llama3-8b", 8_030_261_248), ("llama3-70b", 70_553_706_496),
        ("yi-34b", 34_388_917_248), ("mistral-7b", 7_241_732_096), ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-72b", 72_706_203_648), ("mixtral-8x22b", 140_620_634_112), ("deepseek-v3", 671_026_419_200),
        ("qwen3-235b-a22b", 235_093_634_560),
    ],
)  # fmt: skip
def test_parameters_are_those_of_the_published_checkpoints(name: str, expected: int) -> None:
    """A shape with one wrong number would not have the parameter count that its checkpoint is known for."""
    m = catalog.model(name)

    assert expected == catalog.parameters(m)
    assert 2 * expected == catalog.weight_bytes(m)


def test_opt_175b_needs_350_gb_so_a_pair_of_replicas_cannot_share_a_node() -> None:
    """Two copies of OPT-175B must not seem to fit eight GPUs of 80 GB (K10.d)."""
    weights = catalog.weight_bytes(catalog.model("opt-175b"))

    assert weights == pytest.approx(350e9, rel=0.01)
    assert 2 * weights > 8 * 80e9


def test_hand_off_of_opt_175b_over_nvlink_and_over_ethernet() -> None:
    """4.0 ms on 600 GB/s and 0.77 s on 25 Gbps for 512 tokens (K10.c)."""
    kv_bytes = 512 * catalog.kv_bytes_per_token(catalog.model("opt-175b"))

    assert round(kv_bytes / catalog.hardware("a100-80g").nvlink_bytes_per_s * 1e3, 1) == 4.0  # type: ignore[operator]  # it has NVLink
    assert round(kv_bytes / (25e9 / 8), 2) == 0.77


@pytest.mark.parametrize("name", catalog.models())
def test_weights_of_a_group_add_up_to_no_less_than_the_model(name: str) -> None:
    """A split model that weighs less than the whole would give memory that does not exist."""
    m = catalog.model(name)
    whole = catalog.weight_bytes(m)
    for tp in (d for d in (2, 4, 8) if m.heads % d == 0):
        for pp in (d for d in (1, 2, 4) if m.layers % d == 0):
            assert whole <= tp * pp * catalog.weight_bytes(m, catalog.Shape(tp, pp))
            assert catalog.weight_bytes(m, catalog.Shape(tp, pp)) < catalog.weight_bytes(m, catalog.Shape(tp // 2, pp))


def test_kv_heads_are_repeated_when_there_are_more_gpus() -> None:
    """Four KV heads on eight GPUs take as much memory each as on four."""
    m = catalog.model("qwen2.5-72b")

    assert catalog.block_bytes(m, catalog.Shape(8)) == catalog.kv_bytes_per_token(m) * 16 // 8
    assert catalog.block_bytes(m, catalog.Shape(16)) == catalog.block_bytes(m, catalog.Shape(8))


def test_capacity_is_what_the_weights_leave() -> None:
    """Blocks times their size plus weights plus reserve must just fit the share of memory that is ours."""
    m, gpu = catalog.model("llama2-7b"), catalog.hardware("a100-80g")
    blocks = catalog.kv_capacity_blocks(m, gpu, utilisation=0.9)

    left = gpu.memory_bytes * 0.89 - catalog.weight_bytes(m) - blocks * catalog.block_bytes(m)

    assert 0 <= left < catalog.block_bytes(m)
    assert blocks == catalog.kv_capacity_blocks("Llama2-7B", "A100-80G")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: catalog.hardware("a10").peak_flops(1), "a10 has no fp8 tensor cores"),
        (lambda: catalog.hardware("h100").peak_flops(3), "h100 has no 3-byte tensor cores"),
        (lambda: catalog.kv_capacity_blocks("opt-175b", "a10"), "use more pipeline stages or a larger GPU"),
    ],
)  # fmt: skip
def test_wrong_names_and_numbers_are_answered_by_one_sentence(call: object, message: str) -> None:
    """A mistyped name must be met with the nearest known one."""
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]  # a thunk

    assert message in str(error.value)


def test_every_number_of_the_gpus_has_a_source() -> None:
    """A number without a source could not be checked by a reader."""
    for name in catalog.gpus():
        gpu = catalog.hardware(name)
        assert {
            "memory_bytes",
            "bandwidth_bytes_per_s",
            "bf16_flops",
            "fp16_flops",
            "pcie_bytes_per_s",
        } <= set(gpu.sources)
        assert all(len(source) > 10 for source in gpu.sources.values())
    assert all(len(catalog.model(name).source) > 10 for name in catalog.models())


@pytest.mark.parametrize(("name", "dtype_bytes", "ridge"), [("h800", 1, 591), ("h20", 1, 74), ("a100-80g", 2, 153)])
def test_ridge_of_the_roofline(name: str, dtype_bytes: int, ridge: int) -> None:
    """FLOP per byte at which a GPU turns compute-bound (E15); DistServe prints 156 for the A100."""
    gpu = catalog.hardware(name)

    assert ridge == round(gpu.peak_flops(dtype_bytes) / gpu.bandwidth_bytes_per_s)
