"""Arithmetic of experts, ping-pong pipelines, reuse of KV, links, batches and drafts against published numbers."""

from math import inf

import pytest

from backends.systems.deepseek_v3 import ExpertMatrix, exchange, moe
from backends.systems.distserve import chunking, knee, kv
from backends.systems.laws import speculative, tokens_per_step
from backends.systems.megascale_infer import PingPong
from backends.systems.mooncake import kv_reuse
from backends.systems.pd_serve import handoff
from backends.systems.vllm import LONGEST_TOKENS, Traffic, filled
from harness import registry
from harness.errors import UsageError
from harness.spec import link_bytes_per_s

DEEPSEEK = ExpertMatrix()


def test_intensity_of_an_expert_is_that_of_the_roofline():
    """The tokens an expert needs would come from another formula (E15, K11.a)."""
    result = [DEEPSEEK.intensity(rows) for rows in (300, 295, 40, inf)]

    assert pytest.approx([504.9, 497.8, 78.0, 3185.8], abs=0.05) == result


@pytest.mark.parametrize(
    ("gpu", "slide", "exact"), [("h800", (295, 300, 9600, 320), (363, 388)), ("h20", (37, 40, 1280, 128 / 3), (38, 41))]
)
def test_both_modes_give_their_widths(gpu: str, slide: tuple[float, ...], exact: tuple[int, int]):
    """The slide's rounding would be taken for the formula, or the other way round (E15, S35)."""
    by_slide, by_formula = moe(gpu)

    assert pytest.approx(slide) == tuple(by_slide[name] for name in ("least_m", "m", "tokens_in_flight", "gpus"))
    assert exact == (by_formula["m"], by_formula["whole_gpus"])


def test_a_gpu_that_endless_batches_cannot_fill_has_no_width():
    """Experts would be spread over GPUs that they never fill."""
    _, by_formula = moe("h800", inner=64, columns=64)

    assert {"mode", "ridge", "endless"} == {*by_formula}


@pytest.mark.parametrize("ridge", [0.5, 10.0, 156.0, 900.0, 3185.0])
def test_the_least_number_of_tokens_is_the_least(ridge: float):
    """One token more or less would cross the ridge of another GPU (E15)."""
    rows = DEEPSEEK.rows_for(ridge)

    assert rows is not None
    assert DEEPSEEK.intensity(rows) >= ridge
    assert rows == 1 or DEEPSEEK.intensity(rows - 1) < ridge
    assert DEEPSEEK.rows_for(3186) is None


def test_exchanges_of_experts_take_their_time():
    """The bound of 67 tokens per second would not come out (E16, K11.b)."""
    (result,) = exchange()

    assert pytest.approx([120.96e-6, 241.92e-6, 14.757e-3, 67.76], rel=1e-4) == [*result.values()]


@pytest.mark.parametrize(
    ("m", "transfer", "total"), [(3, 0.3, 169.6), (3, 0.5, 170.0), (4, 0.6, 226.2), (4, 1.0, 227.0)]
)
def test_the_formula_of_ping_pong_is_exact_where_transfers_are_hidden(m: int, transfer: float, total: float):
    """The number of micro-batches would be chosen by a formula that does not hold (E17, K12.b)."""
    one = PingPong(1.0, 1.0, transfer, 56)

    assert total == pytest.approx(one.formula_s(m))
    assert total == pytest.approx(one.simulated_s(m))
    assert m >= one.least


def test_ping_pong_is_longer_than_its_formula_with_too_few_micro_batches():
    """Transfers that nothing hides would cost nothing (E17)."""
    one = PingPong(1.0, 1.0, 0.6, 56)

    assert pytest.approx([170.2, 181.2]) == [one.formula_s(3), one.simulated_s(3)]


@pytest.mark.parametrize("experts", [0.5, 0.9, 1.7])
@pytest.mark.parametrize("transfer", [0.1, 0.45])
def test_sides_of_unequal_speed_take_no_less_than_the_formula(experts: float, transfer: float):
    """A step would be promised that no schedule reaches; with enough micro-batches it is exact (E17, K12.a)."""
    one = PingPong(1.0, experts, transfer, 20)

    for m in (1, 2, 3, 4):
        assert one.simulated_s(m) >= one.formula_s(m) - 1e-9 or m == 1
        if m >= one.least:
            assert one.formula_s(m) == pytest.approx(one.simulated_s(m))


def test_a_second_and_a_third_micro_batch_gain_as_published():
    """The gains of figure 4 would not come out (S37)."""
    one = PingPong(1.0, 1.0, 0.3, 56)
    shares = [one.busy_share(m) for m in (1, 2, 3)]

    assert pytest.approx([0.385, 0.764, 0.991], abs=1e-3) == shares
    assert (1.98, 1.30) == pytest.approx((shares[1] / shares[0], shares[2] / shares[1]), rel=0.01)


def test_stored_kv_pays_only_above_the_threshold():
    """KV would be fetched over links on which computing it is faster (E18, K17.a)."""
    for peak, published in ((312e12, 5.86e9), (989e12, 18.6e9)):
        (row,) = kv_reuse(8192, peak)
        least = row["least_link_bytes_per_s"]

        assert published == pytest.approx(least, rel=0.01)
        for factor, pays in ((1.01, True), (0.99, False)):
            assert pays == kv_reuse(8192, peak, link=f"{factor * least / 1e9}GBps")[0]["pays"]


def test_links_are_read_in_bits_and_bytes():
    """25 Gbps would be eight times as fast."""
    assert (3.125e9, 100e9, 600e9) == tuple(map(link_bytes_per_s, ("25Gbps", "800Gbps", "600GBps")))
    with pytest.raises(UsageError, match="A link is a rate such as 25Gbps"):
        link_bytes_per_s("25")


def test_a_hand_off_is_hidden_where_the_link_keeps_up_and_ends_with_the_prefill():
    """A link that is too slow would be called good enough (S31)."""
    slow, fast, long = (
        kv("opt-66b", link=link, latency=latency, tp=4)[0]
        for link, latency in (
            ("25Gbps", "roofline"),
            ("600GBps", "roofline"),
            ("600GBps", "linear:base=1e-4,prefill_token=1e-6"),
        )
    )

    assert 3.87 == pytest.approx(slow["in_use_share"], abs=0.01)
    assert (False, True, False) == (slow["hidden"], fast["hidden"], long["hidden"])


def test_pieces_of_a_hand_off_cost_besides_their_bytes():
    """Contiguous KV would seem to gain nothing (K14.d)."""
    (row,) = handoff(length_tokens=33, link="200Gbps", control_s=1e-5)

    assert 3 * 40 == row["pieces"]
    assert 33 * 819_200 / 25e9 + 1e-5 * 40 == pytest.approx(row["in_one_piece_s"])
    assert 1e-5 * 80 == pytest.approx(row["in_blocks_s"] - row["in_one_piece_s"])


@pytest.mark.parametrize(
    ("prompt", "chunk", "chunks"), [(2047, 512, 4), (16384, 512, 32), (2048, 2048, 1), (100, 512, 1)]
)
def test_a_prompt_in_n_chunks_loads_half_n_squared_chunks_again(prompt: int, chunk: int, chunks: int):
    """The cost of chunking would seem linear (K04.c, S12)."""
    (row,) = chunking(chunk, prompt, latency="linear:base=0.01,prefill_token=0.001")

    assert (chunks, chunks * (chunks - 1) // 2) == (row["chunks"], row["kv_chunk_loads"])
    assert (chunks - 1) * 0.01 == pytest.approx(row["in_chunks_s"] - row["in_one_piece_s"])


def test_the_knee_of_opt_13b():
    """Batching prefill would seem to pay where it does not, and decode the other way round (S29, S30)."""
    of_best = {row["batch"]: row["of_best_share"] for row in knee("prefill", 512, latency="abc:distserve")}
    decodes = {row["batch"]: row["throughput_tokens_per_s"] for row in knee("decode", 256, latency="abc:distserve")}

    assert [1, 2, 4, 8, 16, 32, 64, 128] == [*of_best]
    assert of_best[8] >= 0.85
    assert decodes[128] >= 25 * decodes[1]
    steps_s = [registry.make("latency", "abc:distserve", tp=tp).decode_s(128, 128 * 512) for tp in (1, 2, 4)]
    assert [65.4, 42.0, 27.5] == [round(1e3 * step_s, 1) for step_s in steps_s]


def test_drafts_gain_less_in_larger_batches():
    """Speculation would be switched on where it costs (K06.a, K06.b)."""
    rows = [speculative(4, 0.7, size, 0.1, 512)[0] for size in (1, 16, 64, 256, 512)]
    gains = [row["in_batch_ratio"] for row in rows]

    assert sorted(gains, reverse=True) == gains
    assert gains[0] > 1.5
    assert (1 - 0.7**5) / 0.3 == pytest.approx(tokens_per_step(4, 0.7))
    assert (1.0, 5.0) == (tokens_per_step(4, 0.0), tokens_per_step(4, 1.0))
    assert tokens_per_step(4, 0.7) / 1.4 == pytest.approx(rows[0]["memory_bound_ratio"])


def test_reserved_memory_holds_fewer_tokens_than_paged():
    """The reason for paging would not show: used share and batch fall from paged to oracle, pow2 and max (S05)."""
    traffic = Traffic(requests=400)
    result = [filled(mode, 15_728, traffic) for mode in ("paged", "oracle", "pow2", "max")]

    assert sorted((one.used for one in result), reverse=True) == [one.used for one in result]
    assert sorted((one.batch for one in result), reverse=True) == [one.batch for one in result]
    assert result[0].used >= 0.95
    assert 15_728 // LONGEST_TOKENS == result[3].batch


def test_larger_blocks_waste_more():
    """The size of a block would seem not to matter (K03: 98.3 % at 16 tokens, 76.9 % at 256)."""
    small, large = (filled(f"paged:{size}", 15_728, Traffic(requests=300)) for size in (16, 256))

    assert 0.983 == pytest.approx(small.used, abs=0.01)
    assert 0.769 == pytest.approx(large.used, abs=0.03)


def test_lengths_have_the_requested_means():
    """What is cut off above 2,048 tokens would lower the means, and raise the batch (S05)."""
    lengths = [(r.prompt_tokens, r.output_tokens) for r in Traffic(requests=800).requests_at_once()]

    assert (161.31, 337.99) == pytest.approx(tuple(sum(one) / 800 for one in zip(*lengths, strict=True)), rel=1e-3)
    assert max(map(sum, lengths)) <= LONGEST_TOKENS
