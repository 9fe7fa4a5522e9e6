"""Shipped models against published parameter counts, memory in several formats and shapes, windows and states."""

import math
from dataclasses import replace

import pytest

from harness import catalog
from harness.catalog import Formats, Shape, Window
from harness.errors import UsageError

# name, published parameters in billions, published active ones, where published, allowed difference
PUBLISHED = [
    ("gpt-oss-20b", 20.91, None, "model card of gpt-oss, table 1", 0.001),
    ("gpt-oss-120b", 116.83, None, "model card of gpt-oss, table 1", 0.001),
    ("qwen3-8b", 8.2, None, "model card", 0.01),
    ("qwen3-14b", 14.8, None, "model card", 0.01),
    ("qwen3-32b", 32.8, None, "model card", 0.01),
    ("qwen3-30b-a3b", 30.5, 3.3, "model card", 0.02),
    ("qwen3-235b-a22b-fp8", 235, 22, "model card", 0.01),
    ("llama3.1-8b", 8.03, None, "model card", 0.001),
    ("llama3.1-70b", 70.6, None, "model card", 0.001),
    ("llama3.1-405b", 405.9, None, "model card, 405B; 406 by its checkpoint", 0.001),
    ("llama3.3-70b", 70.6, None, "model card", 0.001),
    ("llama4-scout", 109, 17, "model card, with the vision tower, which is not counted here", 0.013),
    ("llama4-maverick", 400, 17, "model card, with the vision tower", 0.012),
    ("deepseek-v3-fp8", 671, 37, "model card, without the draft layer", 0.016),
    ("deepseek-r1", 671, 37, "model card, without the draft layer", 0.016),
    ("glm-4.5", 355, 32, "model card; its draft layer is not counted here", 0.06),
    ("glm-5", 744, 40, "model card", 0.045),
    ("kimi-k2", 1000, 32, "model card, 1T", 0.027),
    ("minimax-m2.5", 230, 10, "model card", 0.11),
    ("gemma3-12b", 12, None, "model card, with the vision tower of 0.4 billion", 0.02),
    ("gemma3-27b", 27, None, "model card, with the vision tower of 0.4 billion", 0.01),
    ("mistral-small-24b", 23.6, None, "model card, 24B", 0.002),
    ("mixtral-8x7b", 46.7, 12.9, "Jiang et al., arXiv 2401.04088", 0.002),
    ("mixtral-8x22b", 141, 39, "announcement of Mistral AI", 0.005),
]


@pytest.mark.parametrize(("name", "billions", "active", "where", "within"), PUBLISHED)
def test_parameters_are_near_the_published_total(
    name: str, billions: float, active: float | None, where: str, within: float
) -> None:
    """A shape that misses its maker's count by more than what the row explains is not that model."""
    m = catalog.model(name)

    assert billions == pytest.approx(catalog.parameters(m) / 1e9, rel=within), where
    if active is not None:
        assert active == pytest.approx(catalog.active_parameters(m) / 1e9, rel=0.11), where


@pytest.mark.parametrize(
    ("name", "gb", "within"),
    [("gpt-oss-20b", 13.76, 0.003), ("gpt-oss-120b", 65.25, 0.003), ("deepseek-r1", 673.2, 0.001)],
)
def test_weights_have_the_size_of_the_published_checkpoints(name: str, gb: float, within: float) -> None:
    """gpt-oss: 12.8 and 60.8 GiB of the model card; DeepSeek: 671.03 billion in 8 bits, head and embedding in 16."""
    assert gb == pytest.approx(catalog.weight_bytes(catalog.model(name)) / 1e9, rel=within)


def test_each_part_is_counted_in_its_format() -> None:
    """Formats that leaked into other parts would shift every memory limit of a quantised model."""
    plain = catalog.model("qwen3-30b-a3b")
    packed = replace(plain, formats=Formats(experts="mxfp4"))
    experts = plain.experts
    assert experts is not None

    saved = catalog.weight_bytes(plain) - catalog.weight_bytes(packed)

    assert saved == plain.layers * experts.routed * plain.expert_matrix * (16 - 4.25) / 8
    assert catalog.weight_bytes(packed, weight_bits=8) == catalog.weight_bytes(plain, weight_bits=8)


@pytest.mark.parametrize("name", catalog.models())
def test_arguments_override_the_formats(name: str) -> None:
    """`kv_bits` is promised to win over what the checkpoint says."""
    m = catalog.model(name)
    plain = replace(m, formats=Formats())

    assert catalog.block_bytes(plain, kv_bits=8) == catalog.block_bytes(m, kv_bits=8)
    assert catalog.kv_bytes_per_token(plain) == 2 * m.kv_layers * m.kv_elements


def test_experts_and_attention_are_divided_by_the_shape() -> None:
    """32 GPUs, attention on each, eight experts of 256 on each: DeepSeek's decoding units, not 32 copies of experts."""
    m = catalog.model("deepseek-v3")
    assert m.experts is not None

    whole, split = catalog.weight_bytes(m), catalog.weight_bytes(m, Shape(dp=32, ep=32))

    experts = 2 * m.routed_layers * m.experts.routed * m.expert_matrix
    assert split == whole - experts + experts // 32
    assert split == catalog.weight_bytes(m, Shape(dp=32))  # matrices divided instead of experts: equal bytes
    assert catalog.weight_bytes(m, Shape(8)) == catalog.weight_bytes(m, Shape(tp=8, ep=8))
    assert Shape(tp=2, pp=3, dp=4, sp=5).gpus == 120


def test_memory_of_data_parallel_groups_adds_up() -> None:
    """Eight groups hold eight times the KV of one, which with latent attention eight tensor-parallel GPUs do not."""
    m, gpu = catalog.model("deepseek-r1"), catalog.hardware("h200")

    apart = catalog.kv_capacity_blocks(m, gpu, Shape(dp=8, ep=8))
    together = catalog.kv_capacity_blocks(m, gpu, Shape(tp=8))

    left = 0.89 * gpu.memory_bytes - catalog.weight_bytes(m, Shape(dp=8, ep=8))
    assert apart == 8 * math.floor(left / catalog.block_bytes(m))
    assert apart > 4 * together


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (Shape(tp=3), "tp=3 does not divide the 128 attention heads"),
        (Shape(tp=8, nodes=(4,)), "nodes hold 4 GPUs, but the replica has 8"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(shape: Shape, message: str) -> None:
    """Weights that do not exist in that division would be counted."""
    with pytest.raises(UsageError, match=message):
        catalog.weight_bytes(catalog.model("deepseek-v3"), shape)


@pytest.mark.parametrize("name", ["gpt-oss-120b", "gemma3-27b", "llama4-scout"])
@pytest.mark.parametrize("seqs", [1, 16, 256, 1024])
def test_counted_blocks_hold_any_mix_of_lengths(name: str, seqs: int) -> None:
    """The count is a promise for every mix of at most `seqs` sequences; one more block could break it."""
    m, gpu, tp = catalog.model(name), catalog.hardware("h200"), 8
    m = replace(m, kv_heads=max(8, m.kv_heads))
    left = 0.89 * gpu.memory_bytes - catalog.weight_bytes(m, Shape(tp))

    blocks = catalog.kv_capacity_blocks(m, gpu, Shape(tp), seqs=seqs)

    assert m.window is not None
    inside = min(blocks, seqs * math.ceil(m.window.tokens / 16))  # the worst mix fills every window first
    one = catalog.block_bytes(m, Shape(tp)) / m.kv_layers
    assert blocks * m.full_layers * one + inside * m.window.layers * one <= left
    more = min(blocks + 1, seqs * math.ceil(m.window.tokens / 16))
    assert (blocks + 1) * m.full_layers * one + more * m.window.layers * one > left


def test_a_model_of_windows_alone_is_counted_as_before() -> None:
    """Mistral 7B keeps 4096 tokens in every layer; without a bound it would hold endless sequences."""
    m = catalog.model("mistral-7b")
    assert m.window == Window(4096, 32)

    assert catalog.kv_capacity_blocks(replace(m, window=None), "h100") == catalog.kv_capacity_blocks(m, "h100")


def test_peaks_and_links_of_new_gpus() -> None:
    """An NVL72 is one domain of 72; two GPUs of an Infinity Fabric mesh have one of its seven links."""
    gb200, mi300x, h100 = (catalog.hardware(name) for name in ("gb200", "mi300x", "h100"))

    assert (gb200.link_gpus, mi300x.link_gpus, h100.link_gpus) == (72, 8, 8)
    assert mi300x.group_bytes_per_s(2) == 64e9
    assert mi300x.group_bytes_per_s(8) == mi300x.link_bytes_per_s == 448e9
    assert h100.group_bytes_per_s(2) == h100.link_bytes_per_s
    assert gb200.peak("fp4") == 10e15
    assert h100.peak("fp4") is None
