"""`bench run --warmup`: what is measured begins at the cut, and the table keeps everything."""

import json

import numpy as np
import pytest

from backends.sim import Sim
from harness.configs import read
from harness.data import folder
from harness.data.codec import encode
from harness.data.large import load
from harness.data.run_json import Cut
from harness.errors import UsageError
from harness.metrics.objective import Pooled
from harness.options import Given, run_spec
from harness.runner.run import execute
from reports.document.rendered import render_run as render

SIM = {"backend": "sim", "latency": "abc:distserve", "policy": "vllm-v0", "slo": "ttft=0.15,tpot=0.1", "rate": 1}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """`executed(**options)`: the run read back from its folder."""

    def make(**options):
        spec = run_spec(Given({**SIM, "requests": 300, **{k.replace("_", "-"): v for k, v in options.items()}}))
        return execute(spec, out=tmp_path_factory.mktemp("runs") / "run").run

    return make


@pytest.fixture(scope="module")
def cut(executed):
    return executed(warmup="100")


def test_the_summary_is_of_what_comes_after_the_cut(cut):
    """Metrics would mix the system that fills with the one that serves; checked against plain loops."""
    rows = sorted(cut.requests.to_pylist(), key=lambda row: row["scheduled_s"])[100:]
    ttft_s = [row["token_s"][0] - row["scheduled_s"] for row in rows]
    tpot_s = [(r["token_s"][-1] - r["token_s"][0]) / (r["output_tokens"] - 1) if r["output_tokens"] > 1 else None
              for r in rows]  # fmt: skip
    met = [a <= 0.15 and (b is None or b <= 0.1) for a, b in zip(ttft_s, tpot_s, strict=True)]
    span_s = rows[-1]["scheduled_s"] - rows[0]["scheduled_s"]
    summary = cut.info.summary

    assert 300 == cut.requests.num_rows
    assert 200 == cut.measured.num_rows == summary.requests
    assert np.quantile(ttft_s, 0.99) == pytest.approx(summary.metrics["ttft"].p99)
    assert sum(met) / 200 == summary.attainment
    assert sum(met) / 200 * 199 / span_s == pytest.approx(summary.goodput_rps)
    assert span_s == pytest.approx(summary.window_s)


def test_the_keys_of_vllm_count_from_the_cut(cut):
    """Its throughput would be divided by a time that was not measured."""
    last_s = max(row["token_s"][-1] for row in cut.measured.to_pylist())

    assert last_s - cut.info.warmup.at_s == pytest.approx(cut.info.duration)


def test_the_cut_stands_in_the_run_and_is_repeated(cut):
    """A run could not be repeated, nor its numbers found again in its table."""
    at_s = sorted(cut.requests["scheduled_s"].to_pylist())[100]
    again = run_spec(Given({}), read(str(cut.path)).given)

    assert Cut("100", at_s, 100) == cut.info.warmup
    assert "100" == cut.info.spec["warmup"] == again.warmup
    assert cut.measured.equals(folder.load(cut.path).measured)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_every_report_says_what_was_left_out(form, cut):
    """A reader would take the numbers for those of the whole run."""
    text = " ".join(render(form, cut).split())

    assert "100 of 300 requests, due before" in text
    assert "200 requests met the SLO" in text
    assert "Near the knee one run decides nothing" in text
    assert "within this run; other seeds may differ by more" in text


def test_a_run_without_a_cut_measures_everything(executed):
    """Short runs would lose what they have."""
    run = executed()

    assert run.measured is run.requests
    assert Cut("none", 0.0, 0) == run.info.warmup
    assert "Warm-up" not in render("text", run)


def test_a_run_that_never_settles_has_a_warning(executed):
    """Half of a growing queue would be cut, and the rest be called the steady state."""
    run = executed(rate=8, requests=600, warmup="mser5")

    assert run.info.warmup.stationary is False
    assert "not-stationary" in [w.code for w in run.info.warnings]
    assert run.info.verdict.overloaded
    assert "no interval" in run.info.within.why_not
    assert "no place to cut was found (mser5)" in render("text", run)


def test_a_cut_of_everything_is_refused_before_anything_is_written(tmp_path):
    """A run of an hour would be measured on its last request."""
    spec = run_spec(Given({**SIM, "requests": 60, "warmup": "200"}))

    with pytest.raises(UsageError, match="--warmup 200 leaves nothing of the 60 requests"):
        execute(spec, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_stored_is_plain_json(cut):
    """NaN is no JSON: other programs could not read run.json."""
    for key in ("warmup", "within", "failures", "checks"):
        json.dumps(encode(cut.info)[key], allow_nan=False)


BOUNDS = ("ttft=0.15,tpot=0.1", "itl=0.05,p99:itl=0.04", "itl_p99=0.03", "p99:ttft=0.2")


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("warmup", "rate"), [(None, 1), ("100", 6)])
def test_a_large_run_is_concluded_as_a_small_one(bounds, warmup, rate, executed, monkeypatch):
    """A million requests would get other numbers than a thousand, because their tokens are not held."""
    given = {"slo": bounds, "rate": rate, **({} if warmup is None else {"warmup": warmup})}
    small = executed(**given)
    monkeypatch.setattr("harness.data.large.LARGE", 100)
    monkeypatch.setattr("harness.data.large.PART", 70)
    monkeypatch.setattr("harness.data.mapped.HELD", 140)
    monkeypatch.setattr("harness.metrics.quantiles.HELD", 50)
    large = executed(**given)
    passed, read = (vars(run.aggregate(Pooled).counted["itl"]) for run in (large, load(large.path)))
    one, other = encode(small.info), encode(large.info)

    assert small.whole is None
    assert large.whole is not None
    assert Pooled in large.aggregates  # gathered while it went on, as from its files
    assert all(np.array_equal(passed[name], read[name]) for name in passed)
    gaps, found = one["summary"]["metrics"]["itl"], other["summary"]["metrics"]["itl"]
    for part in ("mean", "std"):  # added up in another order
        assert gaps.pop(part) == pytest.approx(found.pop(part), rel=1e-12)
    for part in ("summary", "within", "checks", "warnings", "verdict", "fidelity", "warmup", "duration",
                 "request_throughput", "output_throughput"):  # fmt: skip
        assert one[part] == other[part], part


@pytest.mark.parametrize("large", [50, 50_000])
def test_tables_of_a_simulator_are_held_as_they_are_stored(large, executed, monkeypatch):
    """A plug-in whose tables have other columns, or another order, would end its run in an error of Arrow."""
    tables, steps = Sim.tables, Sim.steps_table
    mine = executed()
    monkeypatch.setattr("harness.data.large.LARGE", large)
    monkeypatch.setattr(Sim, "tables", lambda *given: (t.select(t.column_names[::-1]) for t in tables(*given)))
    monkeypatch.setattr(Sim, "steps_table", lambda sim: steps(sim).drop_columns(["host_s"]))
    other = executed()
    stored = folder.load(other.path)

    assert encode(mine.info.summary) == encode(other.info.summary)
    assert stored.steps.drop_columns(["host_s"]).equals(mine.steps.drop_columns(["host_s"]))
    if large > 300:
        assert stored.requests.equals(other.requests)
        assert stored.steps.equals(other.steps)
