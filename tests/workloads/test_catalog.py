"""Workloads by name: presets, specs, overrides, refusals."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.api import Request
from harness.data.schedule import Schedule
from harness.errors import UsageError
from harness.registry import make
from workloads import catalog, replay
from workloads.lengths.builtin import Fixed
from workloads.mixed import Mixed


def draw(loaded: catalog.Loaded, count: int, seed: int = 0) -> list[Request]:
    return list(Schedule.draw(loaded.workload, seed=seed, requests=count))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n10,5,5\n11,5,5\n11,5,5\n14,5,5\n")
    return path


@pytest.mark.parametrize(
    ("name", "slo", "lengths", "tokenizer"),
    [
        ("chatbot", "ttft=0.25,tpot=0.1", "sharegpt", "opt"),
        ("code", "ttft=0.125,tpot=0.2", "humaneval", "opt"),
        ("summarization", "ttft=15,tpot=0.15", "longbench", "opt"),
    ],
)
def test_presets_are_those_of_distserves_table(name: str, slo: str, lengths: str, tokenizer: str) -> None:
    """If this failed, 'chatbot' would be scored against another paper's objectives."""
    loaded = catalog.load(name)

    assert slo == loaded.slo_text
    assert lengths == loaded.lengths_text
    assert tokenizer in str(loaded.provenance["tokenizer"])
    assert {"source", "preparation", "tokenizer", "licence", "slo_source"} <= set(loaded.provenance)
    assert loaded.provenance == loaded.workload.describe()


def test_explaining_a_preset_tells_the_lengths_slo_and_origin() -> None:
    """If this failed, a user could not learn which of three ShareGPTs 'chatbot' is."""
    text = catalog.explain("chatbot")

    for words in (
        "mean 758.7, p50 679, p90 1,543",
        "mean 186.3, p50 76, p90 506",
        "TTFT at most 0.25 s",
        "OPT-13B on A100",
    ):
        assert words in text


def test_explaining_a_spec_tells_its_lengths() -> None:
    """If this failed, only presets could be understood before a run."""
    assert "Prompt tokens: mean 100.0, p50 100, p90 100" in catalog.explain("fixed:prompt=100")


def test_the_slots_preset_ends_where_the_picture_says() -> None:
    """If this failed, the textbook comparison of static and continuous batching would not come out."""
    requests = draw(catalog.load("deck-slots"), 100)

    assert [6, 8, 5, 7] == [r.output_tokens for r in requests[:4]]
    assert 7 == len(requests)
    assert {(0.0, 1)} == {(r.scheduled_s, r.prompt_tokens) for r in requests}
    assert 4 * 8 == sum(r.output_tokens for r in requests)


def test_the_orca_preset_arrives_within_the_first_step() -> None:
    """If this failed, the textbook batches {R1,R2}, {R1,R2,R3}, {R1,R3,R4} would not come out."""
    requests = draw(catalog.load("deck-orca"), 100)

    assert [0, 0, 1, 2, 2] == [round(r.scheduled_s * 1000) for r in requests]
    assert 2 == requests[1].output_tokens
    assert all(r.output_tokens >= 2 for r in requests)


def test_lengths_named_like_a_preset_are_lengths_where_they_have_arguments() -> None:
    """If this failed, one of two things of a name could not be had."""
    assert "Classes: 2" in catalog.explain("burstgpt")
    assert "burstgpt:service=api" == catalog.load("burstgpt:service=api").lengths_text
    assert catalog.load("burstgpt").lengths_text.endswith("; api: burstgpt:service=api")  # of classes of a preset too


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["poisson", "gamma:cv=3", "constant", "gamma:cv=0.2"]),
    st.floats(0.1, 50),
    st.integers(0, 2**32),
)
def test_changing_the_arrivals_leaves_the_lengths_alone(arrivals: str, rate_rps: float, seed: int) -> None:
    """If this failed, two arrival processes would be compared on different prompts."""
    one = draw(catalog.load("chatbot"), 200, seed)
    two = draw(catalog.load("chatbot", arrivals=arrivals, rate_rps=rate_rps), 200, seed)

    assert [(r.prompt_tokens, r.output_tokens) for r in one] == [(r.prompt_tokens, r.output_tokens) for r in two]


def test_changing_the_lengths_leaves_the_arrivals_alone() -> None:
    """If this failed, two length laws would be compared on different arrivals."""
    one, two = draw(catalog.load("chatbot"), 200), draw(catalog.load("chatbot", lengths="fixed"), 200)

    assert [r.scheduled_s for r in one] == [r.scheduled_s for r in two]


@pytest.mark.parametrize("name", [*catalog.presets(), "lognormal", "uniform", "fixed"])
def test_requests_are_ordered_numbered_and_repeatable(name: str) -> None:
    """If this failed, a seed would not name one schedule, or its rows would not be in order of time."""
    one, two = draw(catalog.load(name), 300, 3), draw(catalog.load(name), 300, 3)

    assert one == two
    assert list(range(len(one))) == [r.id for r in one]
    assert all(a.scheduled_s <= b.scheduled_s for a, b in zip(one, one[1:], strict=False))
    assert all(r.prompt_tokens >= 1 and r.output_tokens >= 1 for r in one)


@pytest.mark.parametrize(
    ("rate", "arrivals", "expected", "text"),
    [
        (None, None, 2.0, "poisson:rate_rps=2.0"),
        (4.0, None, 4.0, "poisson:rate_rps=4.0"),
        (None, "gamma:cv=2", 2.0, "gamma:rate_rps=2.0,cv=2.0"),
        (4.0, "gamma:cv=2", 4.0, "gamma:rate_rps=4.0,cv=2.0"),
        (None, "constant:5", 5.0, "constant:rate_rps=5.0"),
        (5.0, "constant:5", 5.0, "constant:rate_rps=5.0"),
    ],
)
def test_which_rate_holds(rate: float | None, arrivals: str | None, expected: float, text: str) -> None:
    """If this failed, --rate or the preset's own rate would be lost when the arrivals change."""
    loaded = catalog.load("chatbot", rate_rps=rate, arrivals=arrivals)

    assert expected == loaded.rate_rps
    assert text == loaded.arrivals_text


@pytest.mark.parametrize(
    ("workload", "arrivals", "expected"),
    [
        ("chatbot", "burstgpt:service=api", 2.0),
        ("chatbot", "azure", 2.0),
        ("chatbot", "steps:levels=1/3", 2.0),
        ("chatbot", "steps:levels=2/6", 4.0),
        ("fixed", "azure", 5.53),
        ("fixed", "gamma:cv=2", 1.0),
        ("azure-conversation", None, 5.53),
    ],
)
def test_which_rate_holds_for_arrivals_with_a_rate_of_their_own(
    workload: str, arrivals: str | None, expected: float
) -> None:
    """If this failed, a demonstration would take hours at a published rate, or a staircase would be bent in silence."""
    assert expected == pytest.approx(catalog.load(workload, arrivals=arrivals).rate_rps, abs=0.005)


def test_the_law_of_the_gaps_is_handed_on_where_there_is_one(trace: Path) -> None:
    """If this failed, the fidelity line would test gaps against nothing, or against a law that they lack."""
    law = catalog.load("chatbot").gap_cdf

    assert law is not None
    np.testing.assert_allclose([1 - np.exp(-2.0)], law(np.array([1.0])))
    assert catalog.load("chatbot", arrivals="constant").gap_cdf is None
    assert catalog.load("chatbot", arrivals=f"trace:{trace}").gap_cdf is None


def test_arrivals_of_a_trace_with_other_lengths(trace: Path) -> None:
    """If this failed, recorded burstiness could not be combined with the lengths of another service."""
    loaded = catalog.load("chatbot", arrivals=f"trace:{trace}")
    requests = draw(loaded, 100)

    assert [0, 1, 1, 4] == [r.scheduled_s for r in requests]
    assert 4 == loaded.requests
    assert 0.75 == loaded.rate_rps
    assert [r.prompt_tokens for r in draw(catalog.load("chatbot"), 4)] == [r.prompt_tokens for r in requests]
    assert "sha256" in str(loaded.provenance["arrivals"])


def test_a_trace_is_loaded_with_its_facts(trace: Path) -> None:
    """If this failed, a report could not say which file a run replayed."""
    loaded = replay.load(str(trace), limit=3)

    assert "trace.csv" == loaded.name
    assert 3 == loaded.requests
    assert 2.0 == loaded.rate_rps
    assert f"trace:path={trace},limit=3" == loaded.arrivals_text
    assert "" == loaded.slo_text


def test_a_burst_at_one_instant_has_no_rate(trace: Path) -> None:
    """If this failed, a trace of one row would divide by zero."""
    assert 0.0 == replay.load(str(trace), limit=1).rate_rps


def test_the_seed_reaches_the_content() -> None:
    """If this failed, prompts would be the same whatever the seed, and a cache would stay warm between runs."""
    request = Request(0, 0.0, 50, 1)
    one, two = (catalog.load("fixed", seed=seed).content.token_ids(request, 1000) for seed in (1, 2))

    assert one.tolist() != two.tolist()
    assert (
        one.tolist() == catalog.load("fixed", seed=9, content="tokens:seed=1").content.token_ids(request, 1000).tolist()
    )


def test_bounds_of_a_class_travel_with_each_request() -> None:
    """If this failed, a mix of classes could not be held to different objectives."""
    mixed = Mixed(make("arrivals", "poisson"), Fixed(), tag="long", slo={"ttft": 2.0})
    request = next(iter(Schedule.draw(mixed, seed=0, requests=1)))

    assert ("long", 2.0, None) == (request.tag, request.slo_ttft_s, request.slo_tpot_s)


def test_an_unknown_preset_has_its_nearest_name() -> None:
    """If this failed, `bench explain` or `bench init` would end in a missing file."""
    with pytest.raises(UsageError, match=r"No preset named 'chatbo'. Did you mean 'chatbot'"):
        catalog.preset_text("chatbo")


@pytest.mark.parametrize("rate_rps", [0.0, float("nan")])
def test_a_rate_of_nothing_is_refused_in_code_too(rate_rps: float) -> None:
    """If this failed, a run made in Python would never send its first request."""
    with pytest.raises(UsageError, match="--rate must be above 0"):
        catalog.load("chatbot", rate_rps=rate_rps)
