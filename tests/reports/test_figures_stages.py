"""Where the time of requests went: stages, single requests, causes of misses, gaps over time."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from harness.api import RequestRecord, Step
from harness.data.folder import Run
from harness.data.records import steps_table, to_table
from harness.data.run_json import RunInfo
from harness.metrics.measure import marked
from harness.metrics.objective import parse_slo, restored_slo, score
from harness.metrics.stages import APART, TOGETHER, in_pieces, summed
from harness.validity.server_metrics import queue_shares
from reports import _data
from reports.answers.run import document
from reports.document import Figure
from reports.document.html import data_table
from reports.figures.cdf import latency_cdf
from reports.figures.drawing import Drawing
from reports.figures.stages import NO_MISS, UNBOUND, misses, stages
from reports.figures.tiers import tiers
from reports.figures.timeline import LOST, arrivals, itl_over_time, latency_over_time, timeline

MakeRun = Callable[..., Run]
MakeStaged = Callable[..., Run]


def drawn(figure: Drawing | str) -> go.Figure:
    """As plotly has it, which raises for a property that there is not."""
    assert not isinstance(figure, str), figure
    return figure.plotly()


def record(request_id: int = 0, tokens: Sequence[float] = (1.5, 2.5, 3.0), **more: Any) -> RequestRecord:
    """Due at 0, sent at 0.25, prefill from 0.5 to its first token, decodes from 0.25 s after it."""
    facts: dict[str, Any] = {
        "scheduled_s": 0.0, "sent_s": 0.25, "token_s": tokens, "token_n": None, "prompt_tokens": 100,
        "output_tokens": len(tokens), "output_tokens_asked": len(tokens), "status": "ok", "replica": 0,
        "preemptions": 0, "prefill_start_s": 0.5, "prefill_end_s": tokens[0],
        "decode_start_s": tokens[0] + 0.25 if len(tokens) > 1 else None,
    }  # fmt: skip
    return RequestRecord(request_id, **{**facts, **more})


def step(start_s: float, end_s: float, *, decodes: int = 0, replica: int = 0) -> Step:
    return Step(replica, start_s, end_s, 0 if decodes else 100, decodes, 10, 0, 1, 100)


@pytest.fixture
def staged() -> MakeStaged:
    """Makes a run of records and steps."""

    def make(records: Sequence[RequestRecord], steps: Sequence[Step] = (), slo: str = "ttft=1,tpot=1") -> Run:
        bounds = [dataclasses.asdict(b) for b in parse_slo(slo).bounds] if slo else []
        info = {"schema": 1, "state": "finished", "slo": {"text": slo, "goal": 0.9, "bounds": bounds}, "summary": {}}
        return Run(Path("demo"), RunInfo.of(info), to_table(records), steps_table(steps), None, complete=True)

    return make


def test_phases_of_a_request_follow_from_its_stamps(staged: MakeStaged) -> None:
    """The time that other requests' prompts took from a decoding request would be called its own work."""
    one = record(arrived_s=0.375, prefill_end_s=1.4375, handoff_start_s=1.5, handoff_end_s=1.625)
    run = staged([one], [step(2.0, 2.25), step(2.25, 2.75, decodes=1), step(2.9, 9.0), step(2.0, 3.0, replica=1)])
    [(_, found)] = in_pieces(run, _data.seen(run), queue_shares)

    seconds = (0.25, 0.125 + 0.0625, 0.125, 0.9375, 0.125, 0.1875 + 0.25 + 0.0375, 0.9)
    assert dict(zip(APART, seconds, strict=True)) == pytest.approx(
        dict(zip(found.keys, found.seconds[:, 0].tolist(), strict=True))
    )


def test_phases_add_up_to_the_latency(staged: MakeStaged) -> None:
    """A breakdown would hide or invent time."""
    rng = np.random.default_rng(0)
    records = [
        record(
            i, (1.5 + np.cumsum(0.3 + rng.exponential(0.2, 1 + i % 7))).tolist(), prefill_end_s=1.75,
            arrived_s=(None, 0.25, 0.375, 0.5)[i % 4], decode_start_s=1.75 if i % 7 else None,
        )
        for i in range(200)
    ]  # fmt: skip
    at = np.cumsum(rng.exponential(0.05, 100))
    run = staged(records, [step(a, b, decodes=i % 2) for i, (a, b) in enumerate(zip(at, at[1:], strict=False))])
    [(_, found)] = in_pieces(run, _data.seen(run), queue_shares)

    assert _data.metric(run, "e2e").tolist() == pytest.approx(found.seconds.sum(axis=0).tolist())
    assert np.all(found.seconds >= 0)


def test_without_stamps_queue_and_prefill_stand_together(make_run: MakeRun) -> None:
    """Of an endpoint, which stamps no stages, a queue would be drawn that was never observed; or nothing at all."""
    run = make_run(200, failed=5)
    [(_, found)], figure = in_pieces(run, _data.seen(run), queue_shares), drawn(stages(run))

    assert TOGETHER == found.keys
    assert (195, 5) == (int(found.known.sum()), int((~found.known).sum()))
    assert _data.UNSTAMPED in figure.layout.meta["notes"]
    assert ["client lateness", "queue and prefill", "decode"] == list(dict.fromkeys(t.name for t in figure.data))


def test_shares_are_of_the_time_of_all_requests_together(staged: MakeStaged) -> None:
    """The mean of the percentages would be stored, in which short requests weigh as much as long ones."""
    run = staged([record(0, (1.25,)), record(1, (1.25, 5.25))], slo="ttft=2")
    seconds = {"lateness": 0.5, "queue": 0.5, "prefill": 1.5, "handoff": 0.0, "stall": 0.25, "decode": 3.75}
    times = _data.stages(run).times

    assert {key: total_s / 6.5 for key, total_s in seconds.items()} == pytest.approx(
        {key: time.share for key, time in times.items()}
    )
    assert [total_s / 2 for total_s in seconds.values()] == pytest.approx([time.mean_s for time in times.values()])


def test_bars_of_the_stages_fill_the_whole_time(make_run: MakeRun) -> None:
    """A part of the time would be missing from the bars; a group would hold other requests than it says."""
    bars = stages(make_run(400, failed=0))
    figure = drawn(bars)
    percent = np.sum([t.y for t in figure.data if t.yaxis == "y2"], axis=0)

    assert [100.0] * 4 == pytest.approx(percent.tolist())
    assert ["n = 200", "n = 160", "n = 36", "n = 4"] == [name.split("<br>")[-1] for name in figure.data[0].x]
    assert data_table(bars).heads[0].startswith("requests by their TTFT")


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("lateness", {"sent_s": 0.9, "prefill_start_s": 0.95}),
        ("queue", {"prefill_start_s": 1.2}),
        ("front_s", {"arrived_s": 0.95, "prefill_start_s": 1.0}),
        ("prefill", {"prefill_start_s": 0.3}),
        ("stall", {"tokens": (0.75, 3.0, 6.0), "decode_start_s": 4.5}),
        ("handoff", {"tokens": (0.75, 3.0, 6.0), "handoff_start_s": 0.75, "handoff_end_s": 4.5, "decode_start_s": 4.5}),
        ("decode", {"tokens": (0.75, 3.0, 6.0)}),
        ("preempted", {"tokens": (0.75, 3.0, 6.0), "preemptions": 1}),
        ("rejected", {"status": "rejected"}),
    ],
)
def test_a_miss_has_the_cause_that_the_rule_names(cause: str, change: dict[str, Any], staged: MakeStaged) -> None:
    """A reader would buy GPUs for a queue where the client was late."""
    well = record(1, (0.75, 1.0, 1.25))

    assert {cause: 1} == _data.stages(staged([record(0, **change), well])).misses


def test_every_miss_has_one_cause(make_run: MakeRun) -> None:
    """The causes would not add up to what the summary calls missed."""
    run = make_run(500, failed=20, slo="ttft=0.12,tpot=0.03,e2e=1.5")
    found = _data.stages(run).misses

    assert found is not None
    assert round((1 - run.info.summary.attainment) * 500) == sum(found.values())
    assert found["timeout"] + found["error"] == 20


def test_the_stages_of_a_large_run_add_up_piece_by_piece(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of every piece but the first would be those of other requests."""
    run = make_run(500, failed=20, slo="ttft=0.12,tpot=0.03,e2e=1.5")
    scored = score(run.requests, restored_slo(run.info))
    whole = summed(run, _data.seen(run), scored, queue_shares)
    monkeypatch.setattr("harness.metrics.stages._ROWS", 64)
    pieces = summed(run, _data.seen(run), scored, queue_shares)

    assert (whole.requests, whole.misses) == (pieces.requests, pieces.misses)
    assert [time.mean_s for time in whole.times.values()] == pytest.approx([t.mean_s for t in pieces.times.values()])


def test_causes_need_a_bound_and_a_miss(staged: MakeStaged) -> None:
    """An empty axis would be shown where nothing missed or no SLO was set."""
    assert NO_MISS == misses(staged([record(0, (0.75, 1.0))]))
    assert UNBOUND == misses(staged([record(0)], slo=""))


def test_preemptions_are_counted_over_time(staged: MakeStaged, put) -> None:
    """Memory that ran out again and again would be seen in the sum alone, or not at all."""
    records = [record(i, (1.5 + i, 2.5 + i), preemptions=2 * (i == 7)) for i in range(10)]
    run = staged(records, [step(i, i + 0.5, decodes=3) for i in range(10)])
    put(run, backend={"kv_blocks": 400})
    figure = drawn(timeline(run))
    traces = {t.name: t for t in figure.data}

    assert 2 == sum(traces["preemptions"].y[:-1])
    assert 9.5 <= traces["preemptions"].x[int(np.argmax(traces["preemptions"].y)) + 1]
    assert {75.0} == {y for y in traces["KV memory"].y if np.isfinite(y)}
    assert figure.layout.meta["finding"].endswith("KV memory: 75.0% in use at most; preemptions: 2.")


def test_batches_under_way_fill_the_time_of_their_steps(staged: MakeStaged) -> None:
    """A lane would seem busier or idler than it was, or prompts to be on fewer instances."""
    rng = np.random.default_rng(1)
    for instances in (None, 3):
        steps, until_s = [], {0: 0.0, 1: 0.0}
        for i in range(400):
            lane = int(rng.integers(2))
            start_s = until_s[lane] + rng.exponential(0.1)
            until_s[lane] = start_s + rng.exponential(0.5)
            steps.append(dataclasses.replace(step(start_s, until_s[lane], decodes=1 - lane), lane=lane,
                                             instances=instances and 1 + i % instances))  # fmt: skip
        figure = drawn(timeline(staged([record()], steps)))
        traces = {t.name: t for t in figure.data}

        for lane, name in enumerate(("decodes", "prompts")):
            width = traces[name].x[1] - traces[name].x[0]
            weighted_s = sum((s.end_s - s.start_s) * (s.instances or 1) for s in steps if s.lane == lane)
            assert weighted_s == pytest.approx(sum(traces[name].y) * width)
            assert max(traces[name].y) <= (instances or 1) + 1e-9
        unit = "Instances" if instances else "Batches"
        assert f"{unit} under way in the mean: decodes " in figure.layout.meta["notes"][-1]


def test_tiers_are_drawn_as_they_are_counted(make_run: MakeRun, put) -> None:
    """The share, the time and the bytes of one tier would stand at another, or all runs would have an empty figure."""
    run = make_run(20)
    (dram,) = run.info.backend["tiers"]
    ssd = {"name": "ssd", "hit_tokens": 20, "loads": 0, "load_bytes": 0, "wait_s": 0.0, "store_bytes": 1e9}
    put(run, backend={"tiers": [dram, dram | ssd]})
    bars = {t.name: list(t.y) for t in drawn(tiers(run)).data}

    assert {"found": [25, 10], "mean load": [0.5, 0], "loaded": [3, 0], "written": [5, 1]} == bars
    put(run, backend={"tiers": []})
    blocks = [block for section in document(run).sections for block in section.blocks]
    assert "tiers" not in {block.key for block in blocks if isinstance(block, Figure)}


def test_lateness_has_percentiles_over_time(make_run: MakeRun) -> None:
    """A client that fails in the second half only would look well in the mean."""
    figure = drawn(arrivals(make_run(600)))
    traces = {t.name: t for t in figure.data}

    assert np.all(traces["lateness p50"].y < traces["lateness p99"].y)
    assert 40 == len(traces["lateness p99"].x)


def test_gaps_over_time_count_every_gap(make_run: MakeRun) -> None:
    """A stall would be lost; the table would tell other numbers than the picture."""
    run = make_run(300, failed=3)
    heat = itl_over_time(run)
    figure = drawn(heat)
    cells = np.asarray(figure.data[0].customdata)
    table = data_table(heat)

    gaps = _data.sample(run, "itl")
    assert len(gaps) == cells.sum()
    assert len(gaps) == sum(int(cell.replace(",", "")) for row in table.rows for cell in row[1:])
    assert "counts of neighbouring cells added up" in table.note
    for trace, q in zip([t for t in figure.data if t.showlegend is None][1:], (0.5, 0.99), strict=True):
        assert np.quantile(gaps, q) * 1000 == pytest.approx(float(np.median(trace.y)), rel=0.1)


def test_gaps_of_ten_times_the_median_are_shown(staged: MakeStaged) -> None:
    """A stall just above ten times the median, in the bin where that lies, would be hidden."""
    tokens = [*(1.0 + 0.01 * i for i in range(50)), *(1.5905 + 0.01 * i for i in range(50))]
    finding = drawn(itl_over_time(staged([record(tokens=tokens)]))).layout.meta["finding"]

    assert ": 1.0% of all" in finding
    assert "about ten times the median (" in finding


def test_figures_over_time_say_that_the_warm_up_is_in_them(make_run: MakeRun) -> None:
    """Medians of the run with its warm-up would stand beside those of the table, which leaves it out."""
    cut = {"rule": "10", "requests": 10, "at_s": 5.0}
    for run, noted in ((make_run(), False), (make_run(warmup=cut), True)):
        for draw in (itl_over_time, latency_over_time):
            assert noted is ("The requests of the warm-up are among them." in drawn(draw(run)).layout.meta["notes"])


def test_gaps_that_a_file_does_not_hold_are_not_drawn(make_run: MakeRun) -> None:
    """Of a file with first and last tokens alone, one gap a request would be drawn, as long as the whole answer."""
    run = make_run(50)

    assert LOST == itl_over_time(dataclasses.replace(run, requests=marked(run.requests, ["itl"])))


def test_requests_of_one_token_explain_why_a_share_is_not_that_of_the_table(staged: MakeStaged) -> None:
    """Figure and table of a page would give two shares within one bound, without a word of why."""
    run = staged([record(0), record(1, (1.5,)), record(2)], slo="ttft=2,tpot=1")

    assert "Left out of TPOT and gaps: 1 request of one token." in drawn(latency_cdf(run)).layout.meta["notes"][1]
    assert "Left out" not in " ".join(drawn(latency_cdf(staged([record(0)]))).layout.meta["notes"])
