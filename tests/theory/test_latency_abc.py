"""DistServe's constants: the numbers that follow from them, and the rule for chunks."""

import csv
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import backends.latency.abc as abc
from backends.latency.abc import Abc
from harness.registry import make

FITS = Path(abc.__file__).with_suffix(".toml")


def test_shipped_constants_are_the_published_ones(shared_data: Path) -> None:
    """A digit lost on the way would shift every golden number that rests on these constants."""
    stages = {"prefill": "prefill", "decoding_smallbs": "decode_small", "decoding_largebs": "decode_large"}
    branches = {"main": "main", "camera-ready-simulator": "fitted"}
    shipped = tomllib.loads(FITS.read_text())
    compared = 0
    with (shared_data / "profiles" / "simdistserve_fit_constants.csv").open() as file:
        for row in csv.DictReader(file):
            if row["branch"] in branches:
                fit = shipped[branches[row["branch"]]][row["engine"]][row["model"].split("/")[1]][f"tp{row['tp']}"]
                expected = [float(row[key]) for key in ("c0_ms", "c1_ms_per_token", "c2")]
                compared += 1

                assert expected == fit[stages[row["stage"]]]
    assert compared == 84


def test_main_is_the_fit_times_a_factor() -> None:
    """Prefill is 1.1 or 1.4 times the fit, decode 1.0 or 1.2 times: the trap of DistServe's main branch."""
    shipped = tomllib.loads(FITS.read_text())
    factors = {"distserve": {"prefill": 1.1, "decode_small": 1.0, "decode_large": 1.0},
               "vllm": {"prefill": 1.4, "decode_small": 1.2, "decode_large": 1.2}}  # fmt: skip
    for engine, models in shipped["main"].items():
        for model, tps in models.items():
            for tp, fit in tps.items():
                for stage, constants in fit.items():
                    expected = [factors[engine][stage] * x for x in shipped["fitted"][engine][model][tp][stage]]

                    assert expected == pytest.approx(constants, rel=1e-12)


@pytest.mark.parametrize(
    ("spec", "expected_ms"),
    [
        ("abc:distserve", 72.1),
        ("abc:vllm", 96.1),
        ("abc:distserve,fitted=true", 65.6),
        ("abc:vllm,fitted=true", 68.7),
    ],
)
def test_prefill_of_512_tokens_of_opt_13b(spec: str, expected_ms: float) -> None:
    """Part of DistServe's simulated gain is its engine's constants: 72.1 ms against 96.1 ms."""
    assert expected_ms == pytest.approx(make("latency", spec).step_s([(512, 0)], 0, 0) * 1e3, abs=0.05)


@pytest.mark.parametrize(("tp", "expected_ms"), [(1, 65.4), (2, 42.0), (4, 27.5)])
def test_decode_of_128_sequences_over_tensor_parallel_gpus(tp: int, expected_ms: float) -> None:
    """Tensor parallelism cuts the decode step with diminishing returns (S30)."""
    assert expected_ms == round(Abc("distserve", tp=tp).decode_s(128, 128 * 512) * 1e3, 1)


def test_two_pipeline_stages_double_decode_throughput() -> None:
    """Pipeline stages raise throughput linearly (S30)."""
    assert Abc("distserve").decode_s(128, 128 * 512) >= 1.9 * Abc("distserve", pp=2).decode_s(128, 128 * 512)


@pytest.mark.parametrize("engine", ["vllm", "distserve"])
def test_prefill_throughput_is_flat_beyond_its_knee(engine: str) -> None:
    """Eight prompts of 512 tokens reach within 15 % of the best throughput of any batch up to 128 (S29)."""
    model = make("latency", f"abc:{engine}")
    rates = {b: 512 * b / model.step_s([(512, 0)] * b, 0, 0) for b in range(1, 129)}

    assert rates[8] >= 0.85 * max(rates.values())


@pytest.mark.parametrize("engine", ["vllm", "distserve"])
def test_decode_throughput_grows_with_the_batch(engine: str) -> None:
    """A batch of 128 decodes at least 25 times the tokens per second of one at length 256 (S29)."""
    model = make("latency", f"abc:{engine}")

    assert 128 / model.decode_s(128, 128 * 256) >= 25 / model.decode_s(1, 256)


@given(
    st.sampled_from(["abc:vllm", "abc:distserve", "abc:vllm,model=opt-66b,tp=4", "abc:distserve,tp=2,pp=2"]),
    st.integers(1, 16_000), st.lists(st.integers(1, 15_999), max_size=10), st.integers(0, 4000),
)  # fmt: skip
def test_chunking_costs_one_constant_per_further_chunk(spec: str, prompt: int, cuts: list[int], stored: int) -> None:
    """A prompt in chunks must cost what it costs whole, plus (chunks - 1) times a (E14)."""
    model: Any = make("latency", spec)
    edges = sorted({0, prompt, *(c for c in cuts if c < prompt)})
    chunks = [(b - a, stored + a) for a, b in pairwise(edges)]

    chunked_s = sum(model.step_s([chunk], 0, 0) for chunk in chunks)

    assert chunked_s == pytest.approx(
        model.step_s([(prompt, stored)], 0, 0) + (len(chunks) - 1) * model.step_s([(0, 0)], 0, 0), rel=1e-12
    )


def test_the_negative_quadratic_term_is_read_as_zero() -> None:
    """vLLM's fit for OPT-66B on two GPUs falls with the square of the length: long prompts would be free."""
    model = make("latency", "abc:vllm,model=opt-66b,tp=2")

    assert tomllib.loads(FITS.read_text())["main"]["vllm"]["opt-66b"]["tp2"]["prefill"][2] < 0
    assert model.step_s([(40_000, 0)], 0, 0) == pytest.approx(0.0584 + 40_000 * 0.3826e-3, rel=1e-3)


def test_the_published_fits_fall_where_their_two_sets_meet() -> None:
    """A known quirk, kept as published: 95 sequences decode a little faster than 94."""
    model = Abc("distserve")

    assert 0.9 * model.decode_s(94, 94 * 512) < model.decode_s(95, 95 * 512) < model.decode_s(94, 94 * 512)
