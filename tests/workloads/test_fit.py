"""Fits to traces whose law is known, and to traces that are short, coarse, regular or strange."""

import json
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pytest

from harness.errors import UsageError
from harness.registry import make
from harness.stats import arrivals
from workloads import traces
from workloads.arrivals._services import Component, LogRate
from workloads.fit import _cox, _rate, _verdict, command
from workloads.fit._cox import DispersionCurve
from workloads.fit._rate import gap_shape
from workloads.fit.model import Model, Service
from workloads.fit.process import Cox
from workloads.lengths import _empirical

AZURE = "traces/azure2023/AzureLLMInferenceTrace_conv.csv"


def generated(model, **options):
    return pa.concat_tables(command.tables(model, **options))


def made(at_s, **columns):
    """A trace in memory with the given arrivals; lengths of its own unless given."""
    rng = np.random.default_rng(9)
    lengths = {"prompt_tokens": rng.integers(1, 2000, len(at_s)), "output_tokens": rng.integers(1, 500, len(at_s))}
    table = pa.table({"at_s": np.asarray(at_s, float) - at_s[0], **lengths, **columns})
    return traces.Trace(table, 512, {"file": "made.csv", "requests": len(at_s)})


def renewal(shape, count=20_000, rate_rps=4.0, seed=3):
    return np.cumsum(np.random.default_rng(seed).gamma(shape, 1 / shape / rate_rps, count))


def cox(components, shape, rate_rps, span_s, seed):
    """Arrivals of the process that is fitted, by the code of another folder."""
    rates, gaps = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2))
    rate = LogRate(components, min(part.tau_s for part in components) / 10)
    found = []
    for at_s in rate.times(rate_rps, lambda n: gaps.gamma(shape, 1 / shape, n), rates):
        if at_s > span_s:
            return np.array(found)
        found.append(at_s)
    raise AssertionError


def switched(levels_rps, dwells_s, count=20_000, seed=5):
    """A Markov-modulated Poisson process; a level of 0 makes it on/off."""
    rng = np.random.default_rng(seed)
    parts, start_s, state, total = [], 0.0, 0, 0
    while total < count:
        dwell_s = rng.exponential(dwells_s[state])
        parts.append(start_s + np.sort(rng.random(rng.poisson(levels_rps[state] * dwell_s))) * dwell_s)
        start_s, state, total = start_s + dwell_s, 1 - state, total + len(parts[-1])
    return np.concatenate(parts)[:count]


def fitted(trace, mode="parametric", seeds=0):
    return command.fit(trace, mode=mode, seeds=seeds)


MODES = pytest.mark.parametrize("mode", ["parametric", "rate-following"])


@pytest.mark.parametrize("shape", [0.05, 0.5, 1.0, 2.0, 10.0])
def test_the_variance_of_a_renewal_process_is_that_of_counted_gaps(shape):
    """The closed form to which every parametric fit is made would be wrong, and so would every fit."""
    at_s = renewal(shape, 600_000, rate_rps=1.0)
    at_s = at_s[at_s > 1000]  # past its start it is stationary
    widths_s = np.array([0.3, 1, 3, 10, 50])
    counted = arrivals.dispersion_curve(at_s, widths_s)

    np.testing.assert_allclose(_verdict.Renewal(shape).dispersion(widths_s), counted, rtol=0.05)


def test_the_closed_form_is_the_dispersion_of_simulated_cox_arrivals():
    """A fit would aim at a curve that its own process does not have."""
    parts = (Component(0.4, 60.0), Component(0.3, 4.0))
    at_s = cox(parts, 0.6, 8.0, 40_000.0, seed=1)
    widths_s = np.array([0.2, 1, 5, 20, 100])
    expected = _verdict.dispersion(8.0, parts, _verdict.Renewal(0.6), widths_s, np.zeros(5))

    np.testing.assert_allclose(expected, arrivals.dispersion_curve(at_s, widths_s), rtol=0.12)


@pytest.mark.nightly
def test_parameters_of_a_cox_process_are_found_again():
    """The numbers in model.json would not mean what their names say."""
    at_s = cox((Component(0.4, 300.0), Component(0.35, 6.0)), 0.6, 8.0, 15_000.0, seed=4)
    process = fitted(made(at_s)).services[0].process

    assert 2 == len(process.components)
    slow, fast = process.components
    assert 0.6 == pytest.approx(process.gap_shape, rel=0.06)
    assert (0.4, 0.35) == pytest.approx((slow.sd, fast.sd), rel=0.25)
    assert 150 < slow.tau_s < 600
    assert 3 < fast.tau_s < 12


@pytest.mark.parametrize("shape", [0.25, 0.7, 1.0, 4.0])
def test_the_shape_of_gamma_gaps_is_found_and_no_bursts_are_invented(shape):
    """A steady stream would come back with bursts that it never had."""
    process = fitted(made(renewal(shape))).services[0].process

    assert shape == pytest.approx(process.gap_shape, rel=0.06)
    assert () == process.components


@MODES
def test_a_fit_of_poisson_arrivals_is_poisson(mode):
    """Noise of counting would be taken for bursts, or counted twice."""
    model = fitted(made(renewal(1.0, seed=7)), mode)
    at_s = generated(model, requests=40_000, seed=1)["at_s"].to_numpy()

    np.testing.assert_allclose(arrivals.dispersion_curve(at_s, (1, 10, 60)), 1, atol=0.15)


def test_the_shape_of_gaps_does_not_follow_the_rate():
    """Slow changes of the rate would pass for irregular gaps."""
    steady = renewal(0.5, rate_rps=1.0)
    bent = 1000 * np.expm1(steady / 8000)  # the rate falls to a twelfth

    assert gap_shape(steady) == pytest.approx(gap_shape(bent), rel=0.01)
    assert 0.5 == pytest.approx(gap_shape(bent), rel=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize(("levels", "dwells"), [((1.0, 10.0), (100.0, 100.0)), ((10.0, 0.0), (20.0, 60.0))])
@pytest.mark.parametrize(("mode", "most"), [("parametric", 0.5), ("rate-following", 0.3)])
def test_switched_rates_come_back_although_they_are_no_log_gaussian_process(levels, dwells, mode, most):
    """The fit would be good on the one kind of traffic it was made for."""
    quality = fitted(made(switched(levels, dwells)), mode, seeds=10).quality

    assert quality["curve_distance"]["model"] <= most
    assert 1.5 < quality["curve_distance"]["poisson"]


@pytest.mark.nightly
@pytest.mark.parametrize("spread_s", [0.0, 0.02], ids=["at-once", "within-20-ms"])
@MODES
def test_batches_of_requests_keep_their_dispersion(spread_s, mode):
    """Gaps that are not gamma would give bursts twice as heavy as those of the trace, or none."""
    rng = np.random.default_rng(1)
    start_s, sizes = np.cumsum(rng.exponential(4, 3000)), rng.geometric(0.15, 3000)
    at_s = np.sort(np.repeat(start_s, sizes) + rng.exponential(spread_s or 1e-9, sizes.sum()))
    quality = fitted(made(at_s), mode, seeds=5).quality

    assert quality["curve_distance"]["model"] <= 0.6
    assert 3 < quality["curve_distance"]["poisson"]


@pytest.mark.nightly
def test_a_month_dominated_by_one_campaign_is_not_called_well_fitted():
    """An impossible fit would be accepted; the user would not learn of the other mode."""
    rng = np.random.default_rng(3)
    steady = rng.random(3_000) * 31 * 86_400
    campaign = 1e6 + rng.random(9_000) * 7200
    model = fitted(made(np.sort(np.concatenate([steady, campaign]))), seeds=3)

    assert "DIFFERS" in str(model.lines())
    assert "--mode rate-following may fit better" in str(model.lines())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "part",
    [lambda t: t[: len(t) // 2], lambda t: t[len(t) // 2 :], lambda t: t[::3], lambda t: t / 4],
    ids=["first-half", "second-half", "every-third", "compressed"],
)
@pytest.mark.parametrize(("mode", "most"), [("parametric", 0.5), ("rate-following", 0.3)])
def test_parts_of_azure_are_fitted_as_well_as_the_whole(shared_data, part, mode, most):
    """The fit would be tuned to one file."""
    at_s = part(traces.read(str(shared_data / AZURE)).at_s)
    quality = fitted(made(at_s), mode, seeds=20).quality

    assert quality["curve_distance_all"]["model"] <= most


@pytest.mark.nightly
def test_memories_longer_than_the_trace_can_show_are_reported():
    """A trend in a short trace would be sold as a law."""
    at_s = 1000 * np.sqrt(np.sort(np.random.default_rng(0).random(4000)))
    model = fitted(made(at_s))

    assert any("a longer trace would tell" in note for note in model.method["notes"])


@pytest.mark.nightly
@MODES
def test_stamps_in_whole_seconds_keep_their_bursts_and_the_gap_law_is_unknown(shared_data, mode):
    """The grid would be taken for a burst every second, or a gap law made up."""
    at_s = np.floor(traces.read(str(shared_data / AZURE)).at_s)
    model = fitted(made(at_s), mode, seeds=10)

    assert 1.0 == model.quality["grain_s"]
    assert 1.0 == model.services[0].process.gap_shape
    assert any("not identifiable" in note for note in model.method["notes"])
    assert model.quality["gaps_ks"]["model"] is None
    assert 1.0 == min(model.quality["widths_s"])
    assert model.quality["curve_distance"]["model"] <= 0.4


@pytest.mark.nightly
@MODES
def test_the_three_second_ticks_of_mooncake_are_no_bursts(shared_data, mode):
    """Ten requests every three seconds would be generated, where the recorder only looked every three seconds."""
    trace = traces.read(str(shared_data / "traces/mooncake/conversation_trace.jsonl"))
    model = fitted(trace, mode, seeds=10)
    at_s = generated(model, requests=20_000, seed=3)["at_s"].to_numpy()

    assert 3.0 == pytest.approx(model.quality["grain_s"], abs=0.01)
    assert 1.10 == pytest.approx(model.quality["dispersion"]["trace"][0], abs=0.01)
    assert 0.8 < arrivals.gap_cv(at_s) < 1.3
    assert model.quality["curve_distance"]["model"] <= 0.4


@pytest.mark.nightly
def test_regular_arrivals_stay_regular():
    """A heartbeat would come back as Poisson traffic."""
    model = fitted(made(np.arange(5000) * 0.5))
    at_s = generated(model, requests=5000, seed=0)["at_s"].to_numpy()

    assert arrivals.gap_cv(at_s) < 0.02


def test_a_daily_curve_is_found_where_days_look_alike():
    """Night and day would be thrown about at random."""
    rng = np.random.default_rng(1)
    hours = np.arange(24 * 6)
    counts = rng.poisson(80 * (1.2 + np.sin(2 * np.pi * (hours - 9) / 24)))
    at_s = np.sort(np.repeat(hours, counts) * 3600 + rng.random(counts.sum()) * 3600)
    model = fitted(made(at_s))
    process = model.services[0].process
    drawn = generated(model, duration_s=30 * 86_400.0, seed=2)["at_s"].to_numpy()
    by_hour = np.bincount((drawn // 3600 % 24).astype(int), minlength=24)

    assert 15 in np.argsort(process.hourly)[-3:]
    assert 3 in np.argsort(process.hourly)[:3]
    assert 0.95 < np.corrcoef(by_hour, 1.2 + np.sin(2 * np.pi * (np.arange(24) - 9) / 24))[0, 1]
    assert process.rate_rps == pytest.approx(len(drawn) / (30 * 86_400), rel=0.1)


@pytest.mark.nightly
def test_no_daily_curve_is_made_of_days_that_differ():
    """Campaigns of a month would come back at the same hour every day."""
    at_s = switched((0.2, 0.01), (20_000.0, 40_000.0), count=20_000)

    assert () == fitted(made(at_s)).services[0].process.hourly


def test_each_tag_is_a_service_with_its_own_arrivals_and_lengths():
    """A bursty service would lend its bursts and lengths to a steady one."""
    steady, bursty = renewal(1.0, 6000, 2.0), switched((0.2, 20.0), (60.0, 20.0), 9000)
    until_s = min(steady[-1], bursty[-1])
    at_s = np.concatenate([steady[steady < until_s], bursty[bursty < until_s]])
    tags = np.array(["chat"] * int((steady < until_s).sum()) + ["api"] * int((bursty < until_s).sum()))
    prompts = np.where(tags == "chat", 1000, 10)
    order = np.argsort(at_s)
    model = fitted(made(at_s[order], tag=tags[order], prompt_tokens=prompts[order]))
    table = generated(model, requests=10_000, seed=0)
    drawn, of = table["at_s"].to_numpy(), table["tag"].to_numpy(zero_copy_only=False)

    assert {"chat": 1000, "api": 10} == dict(zip(of, table["prompt_tokens"].to_pylist(), strict=True))
    assert arrivals.dispersion(drawn[of == "chat"], 10.0) < 1.5
    assert 20 < arrivals.dispersion(drawn[of == "api"], 10.0)
    assert (tags == "chat").mean() == pytest.approx((of == "chat").mean(), abs=0.15)


def test_small_tags_are_counted_with_others_and_named():
    """Requests would be lost because their tag is rare."""
    tags = np.array(["many"] * 5000)
    tags[:7] = "rare"
    model = fitted(made(renewal(1.0, 5000), tag=tags))

    assert ["many"] == [service.tag for service in model.services]
    assert 4.0 == pytest.approx(model.rate_rps, rel=0.05)
    assert any("7 of 'rare'" in note for note in model.method["notes"])


@pytest.mark.parametrize("mode", ["parametric", "rate-following"])
def test_a_trace_of_some_dozen_requests_is_refused_and_a_short_one_noted(shared_data, mode):
    """A model of nothing would be used as if it were one."""
    with pytest.raises(UsageError, match="has 60 requests; a fit needs at least 100"):
        fitted(made(renewal(1.0, 60)), mode)

    model = fitted(traces.read(str(shared_data / "traces/burstgpt/BurstGPT_1.head379.csv")), mode, seeds=3)

    assert any("are few" in note for note in model.method["notes"])


def test_requests_that_come_all_at_once_are_refused():
    """A division by zero would be the answer."""
    with pytest.raises(UsageError, match="come at once"):
        fitted(made(np.zeros(500)))


def test_lengths_of_one_value_are_drawn_as_that_value():
    """A trace of equal prompts would break the fit."""
    model = fitted(made(renewal(1.0, 500), prompt_tokens=np.full(500, 7)))

    assert {7} == set(generated(model, requests=2000)["prompt_tokens"].to_pylist())


@pytest.mark.nightly
def test_lengths_keep_quantiles_means_and_rank_correlation(shared_data):
    """Long prompts would no longer go with short answers, or not be as long."""
    trace = traces.read(str(shared_data / AZURE))
    found = fitted(trace, seeds=2).quality["lengths"]

    assert max(found["prompt_ks"], found["output_ks"]) <= 1.36 / np.sqrt(len(trace)) + 0.005
    assert found["spearman_trace"] == pytest.approx(found["spearman_model"], abs=0.03)
    assert found["mean_prompt_tokens"][0] == pytest.approx(found["mean_prompt_tokens"][1], rel=0.02)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(5))
def test_any_lengths_can_be_measured_and_drawn(seed):
    """A list with an odd distribution would end in a traceback."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(100, 3000))
    rare = rng.choice([1, 2, 50_000], rows, p=[0.6, 0.395, 0.005])
    kinds = [rng.lognormal(4, 2, rows), rare, rng.integers(1, 3, rows), rng.integers(1, 99, rows)]
    prompt, output = (np.maximum(np.rint(kinds[i]), 1).astype(np.int64) for i in rng.integers(0, 4, 2))
    figures = json.loads(json.dumps(_empirical.measure(prompt, output)))
    sampler = _empirical.sampler(figures)
    drawn = sampler.draw(rng.random((5, 4000)))

    assert prompt.min() <= drawn[0].min() and drawn[0].max() <= prompt.max()
    assert output.min() <= drawn[1].min() and drawn[1].max() <= output.max()
    assert (prompt.mean(), output.mean()) == pytest.approx(sampler.mean_tokens, rel=1e-3)


def test_sessions_that_are_left_out_are_reported():
    """A trace of few conversations would be drawn as strangers' requests, without a word."""
    at_s = renewal(1.0, 200)
    pairs = pa.array(np.where(np.arange(200) < 12, np.arange(200) // 2, np.arange(200)))
    note = "no sessions are fitted"

    assert note in str(fitted(made(at_s, session=pairs)).lines())
    assert note not in str(fitted(made(at_s, session=pa.array(np.arange(200)))).lines())
    assert note not in str(fitted(made(at_s)).lines())


def test_a_fit_says_that_prefixes_and_sessions_are_dropped():
    """A trace of 1,200 requests that share half of their blocks would be drawn as strangers', without a word."""
    rng = np.random.default_rng(4)
    session, at_s = np.repeat(np.arange(300), 4), np.sort(rng.uniform(0, 3000, 1200))
    shared = pa.array([[0, i + 1] for i in range(1200)], pa.list_(pa.int64()))
    trace = made(at_s, session=pa.array(rng.permutation(session)), prefix_ids=shared)
    text = str(fitted(trace).lines())

    assert "shared prefixes are dropped: 50.0% of the prompt blocks" in text
    assert "no sessions are fitted" in text
    assert "dropped" not in str(fitted(made(at_s)).lines())


def test_shrinking_keeps_a_real_step_and_flattens_noise():
    """A rate that follows the trace would follow its noise too."""
    rng = np.random.default_rng(2)
    step = np.sort(np.concatenate([rng.random(2000) * 500, 500 + rng.random(8000) * 500]))
    flat = np.sort(rng.random(10_000) * 1000)
    of_step, of_flat = (_rate.factors(at_s, 10, _verdict.Renewal(1.0)) for at_s in (step, flat))

    assert (0.4, 1.6) == pytest.approx(
        (of_step[: len(of_step) // 2].mean(), of_step[len(of_step) // 2 :].mean()), abs=0.05
    )
    assert np.repeat(of_flat, 1024 // len(of_flat)).std() < 0.05


def test_a_given_window_is_rounded_to_the_nearest_halving_and_reported():
    """A user would believe in a window that is not the one used."""
    model = command.fit(made(renewal(1.0)), mode="rate-following", window_s=60.0, seeds=0)

    assert 60 == pytest.approx(model.services[0].process.window_s, rel=0.42)
    assert any("windows are" in note for note in model.method["notes"])


@pytest.mark.nightly
def test_more_components_are_not_taken_for_noise():
    """Every fit would have six parameters, most of them about nothing."""
    found = [
        _cox.fit(DispersionCurve.of(at_s, 0.25), _verdict.Renewal(1.0))
        for at_s in (renewal(1.0, seed=s) for s in range(8))
    ]

    assert sum(len(fit.components) for fit in found) <= 1


def test_a_model_file_says_where_it_comes_from_and_reads_back(tmp_path, shared_data):
    """It would be unknown what a model was fitted to, or how."""
    model = command.fit(traces.read(str(shared_data / AZURE), None, traces.Slice(limit=3000)))
    model.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    stored = json.loads((tmp_path / "model.json").read_text())

    assert model == again
    assert str(model.lines()) == str(again.lines())
    assert 1 == stored["bench_model"]
    assert "CC-BY-4.0" == stored["source"]["licence"]
    assert 64 == len(stored["source"]["sha256"])
    assert 3000 == stored["source"]["requests"]
    assert "5.8" in str(model.lines()) or "req/s" in str(model.lines())
    assert stored["quality"]["verdict"]
    assert (tmp_path / "model.json").stat().st_size < 30_000


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("", "is not JSON"),
        ("[1, 2]", "has no 'bench_model'"),
        ('{"a": 1}', "has no 'bench_model'"),
        ('{"bench_model": 99}', "of version 99, newer than 1"),
        ('{"bench_model": 1}', "'services' is missing"),
        ('{"bench_model": 1, "services": []}', "no services"),
        ("\x00\xff", "is not JSON|is not text"),
    ],
)
def test_what_is_no_model_is_refused_in_one_sentence(tmp_path, text, note):
    """A wrong file would end in a traceback."""
    (tmp_path / "model.json").write_text(text, encoding="latin-1")

    with pytest.raises(UsageError, match=note):
        Model.load(tmp_path / "model.json")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("arrivals", "rate_rps"), -1),
        (("arrivals", "rate_rps"), "fast"),
        (("arrivals", "gap_shape"), None),
        (("arrivals", "kind"), "magic"),
        (("arrivals", "components"), [{"sd": 9, "tau_s": 1}]),
        (("arrivals", "components"), [{"sd": 1}]),
        (("arrivals", "hourly"), [1, 2]),
        (("lengths", "prompt"), {}),
        (("lengths", "rank_deciles"), [[1]]),
        (("lengths", "tilt"), "x"),
        (("tag",), 4),
    ],
)
def test_a_damaged_model_is_refused_in_one_sentence(tmp_path, path, value):
    """A model edited by hand would fail in the middle of a run."""
    file = tmp_path / "model.json"
    Model((Service(None, Cox(2.0, 0.7), _empirical.measure(np.arange(1, 401), np.arange(1, 401))),), {}, {}).save(file)
    values = json.loads(file.read_text())
    inner = values["services"][0]
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    file.write_text(json.dumps(values))

    with pytest.raises(UsageError, match="is a damaged model"):
        Model.load(file)


def test_a_missing_model_says_how_to_make_one(tmp_path):
    """A user would see an OSError."""
    with pytest.raises(UsageError, match="bench trace fit"):
        Model.load(tmp_path / "none.json")


def test_an_unknown_mode_and_a_window_without_its_mode_are_refused():
    """A misspelt option would be ignored."""
    trace = made(renewal(1.0, 200))

    with pytest.raises(UsageError, match="rate-following"):
        command.fit(trace, mode="rate-follow")
    with pytest.raises(UsageError, match="narrowest window"):
        command.fit(trace, window_s=3.0)
    with pytest.raises(UsageError, match="longer than 0"):
        command.fit(trace, mode="rate-following", window_s=0.0)


def test_even_gaps_are_fitted():
    """A trace of a metronome was a division by zero."""
    quality = fitted(made(np.arange(400.0)), seeds=3).quality

    assert 0.0 == quality["gap_cv"]["trace"]
    assert any(sentence.startswith("The CV of gaps") for sentence in quality["verdict"])


def test_the_data_of_a_picture_hold_the_trace_the_draw_and_the_band():
    """The picture of a fit would show one side only."""
    trace = made(renewal(0.5, 2000))
    facts = command.picture(fitted(trace, seeds=3), trace)

    assert "recorded" == facts["name"]
    assert 2000 == len(facts["times_s"])
    assert 1500 < len(facts["other"]["times_s"]) < 2500
    assert len(facts["curves"]["widths_s"]) == len(facts["curves"]["band_low"])


STRANGE = {
    "all-but-one-at-once": lambda _: np.concatenate([np.zeros(199), [5e4]]),
    "two-moments": lambda _: np.repeat([0.0, 7.0], 100),
    "ages-between": lambda rng: np.cumsum(rng.pareto(0.3, 300)),
    "microseconds": lambda _: np.arange(300) * 1e-6,
    "ten-at-a-time": lambda rng: np.repeat(np.sort(rng.random(30) * 1000), 10),
    "a-handful-of-ticks": lambda rng: np.sort(rng.integers(0, 4, 300)).astype(float),
    "years": lambda rng: np.sort(rng.random(200) * 3e8),
}


@pytest.mark.nightly
@MODES
@pytest.mark.parametrize("name", STRANGE)
def test_strange_stamps_give_a_model_or_a_sentence(name, mode, tmp_path):
    """An unforeseen trace would end in a traceback, or fill the memory with empty bins."""
    trace = made(STRANGE[name](np.random.default_rng(6)))
    try:
        model = fitted(trace, mode, seeds=2)
    except UsageError:
        return
    model.save(tmp_path / "model.json")
    at_s = generated(Model.load(tmp_path / "model.json"), requests=150)["at_s"].to_numpy()

    assert np.isfinite(at_s).all()
    assert (np.diff(at_s) >= 0).all()
    assert str(model.lines())


@pytest.fixture(scope="module")
def calls():
    """Five hours of calls by programs, whose gap law changes every 20 minutes."""
    times = make("arrivals", "burstgpt:api,mode=steady,mean=long-run", rate_rps=1.0).times(np.random.default_rng(3))
    return made(np.array(list(takewhile(lambda at_s: at_s < 20_000, times))))


def test_gaps_that_vary_too_little_are_in_the_verdict(calls):
    """A fit whose gaps are far too even would only be reported to agree with the trace."""
    quality = fitted(calls, seeds=5).quality
    verdict = " ".join(quality["verdict"])

    assert quality["gap_cv"]["high"] < quality["gap_cv"]["trace"] / 1.42
    assert "The CV of gaps DIFFERS FROM the trace" in verdict
    assert "--mode rate-following may fit better" in verdict


def test_the_mode_that_fits_is_chosen(calls):
    """A bursty service would be fitted by the mode that misses its gaps, although the other one does not."""
    bursty, even = fitted(calls, mode=None, seeds=5), fitted(made(renewal(1.0, 3000)), mode=None, seeds=3)

    assert "rate-following" == bursty.method["mode"]
    assert any("mode rate-following was chosen" in note for note in bursty.method["notes"])
    assert "parametric" == even.method["mode"]


def test_reuse_that_no_draw_has_is_in_the_verdict():
    """A trace full of shared prompts would come back without any, and be called alike."""
    at_s = renewal(1.0, 400)
    shared = fitted(made(at_s, prefix_ids=[[1, 2, 3, i + 10] for i in range(400)]), seeds=3)
    own = fitted(made(at_s, prefix_ids=[[i] for i in range(400)]), seeds=3)

    assert any("Prefix reuse DIFFERS FROM the trace: 74.8% of" in text for text in shared.quality["verdict"])
    assert not any("reuse" in text for text in own.quality["verdict"])
