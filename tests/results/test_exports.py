"""A run that is written as another tool's result and read back has the same figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness import compose, registry
from harness.cli import main
from harness.data import folder
from harness.data.folder import Run
from harness.errors import UsageError
from harness.experiments import imports
from harness.metrics.measure import metrics, sample, succeeded
from harness.metrics.summary import summarize, vllm_keys
from harness.options import Given, run_spec
from harness.runner.run import execute
from reports import _data

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "results"
KEPT = {
    "vllm": ("ttft_sent", "tpot", "itl"),
    "aiperf": ("ttft", "ttft_sent", "tpot", "itl", "e2e"),
    "guidellm": ("ttft", "ttft_sent", "tpot", "e2e"),
}
"""What each format has of every request."""
CLOCK_S = {"vllm": 1e-9, "aiperf": 3e-9, "guidellm": 1e-6}
"""How exact its times are: seconds of the run, whole nanoseconds, and seconds since 1970 as a float."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One with a warm-up, sessions and queues; a closed loop; one of another tool with a request that failed."""
    given = {
        "open": {"rate": "3", "sessions": "fixed:turns=2,think=1s", "warmup": "20", "requests": "120"},
        "closed": {"arrivals": "closed:users=3,think=0s", "requests": "30"},
    }
    found = {}
    for name, options in given.items():
        path = tmp_path_factory.mktemp("runs") / name
        execute(run_spec(Given({"workload": "chatbot", "backend": "sim", **options})), out=path)
        found[name] = folder.load(path)
    return found | {"failed": imports.open(GOLDEN / "vllm-detailed.json")[0]}


def written(run: Run, form: str, at: Path) -> Path:
    content = compose.render_run(form, run)
    files = content if isinstance(content, dict) else {f"{form}.json": content}
    for name, text in files.items():
        compose.put(at / name, text)
    return at / next(iter(files))


@pytest.mark.parametrize("form", KEPT)
@pytest.mark.parametrize("name", ["open", "closed", "failed"])
def test_the_requests_of_a_run_come_back(runs: dict[str, Run], form: str, name: str, tmp_path: Path) -> None:
    """A user who moves a run to another tool would look at other numbers than the report shows."""
    run = runs[name]
    back = imports.open(written(run, form, tmp_path))[0]
    ours = _data.measured(run).requests
    due = name == "open"  # else the times at which requests were due are unknown, or are not the tool's

    assert len(ours) == len(back.requests)
    assert len(ours) - succeeded(ours).sum() == len(back.requests) - succeeded(back.requests).sum()
    for column in ("prompt_tokens", "output_tokens"):  # readers put requests into the order of sending
        assert sorted(ours[column].to_pylist()) == sorted(back.requests[column].to_pylist())
    for metric in KEPT[form]:
        if due or metric not in ("ttft", "e2e"):
            values = [np.sort(sample(metrics()[metric], t, succeeded(t))) for t in (ours, back.requests)]
            np.testing.assert_allclose(*values, rtol=1e-9, atol=CLOCK_S[form], err_msg=metric)


@pytest.mark.parametrize("form", ["aiperf", "guidellm"])
def test_the_slo_comes_back_with_its_attainment(runs: dict[str, Run], form: str, tmp_path: Path) -> None:
    """Both have a place for an SLO; without it the file would be scored under none."""
    run = _data.measured(runs["open"])
    back = imports.open(written(runs["open"], form, tmp_path))[0]

    assert back.info.slo.text == run.info.slo.text == "ttft=0.25,tpot=0.1"
    assert back.info.summary.attainment == summarize(run.requests, _data.slo(run)).attainment < 1
    assert back.info.aggregates["attainment"] == pytest.approx(back.info.summary.attainment)


@pytest.mark.parametrize("form", [*KEPT, "llm-d"])
def test_the_aggregates_are_those_of_the_requests(runs: dict[str, Run], form: str, tmp_path: Path) -> None:
    """Dashboards read the aggregates and never the requests."""
    run = _data.measured(runs["open"])
    keys = vllm_keys(run.requests, _data.slo(run), summarize(run.requests, _data.slo(run)), run.info.warmup.at_s)
    found = imports.open(written(runs["open"], form, tmp_path))[0].info.aggregates

    assert found["completed"] == keys["completed"]
    assert found["output_tokens"] == keys["total_output_tokens"]
    assert found["ttft"]["mean"] * 1e3 == pytest.approx(keys["mean_ttft_ms"], rel=1e-9)
    if form != "guidellm":  # it weighs answers by their tokens, and its percentiles are elements of the list
        assert found["ttft"]["p99"] * 1e3 == pytest.approx(keys["p99_ttft_ms"], rel=1e-9)
        assert found["tpot"]["mean"] * 1e3 == pytest.approx(keys["mean_tpot_ms"], rel=1e-9)
        assert found["itl"]["p50"] * 1e3 == pytest.approx(keys["median_itl_ms"], rel=1e-9)
    if form != "aiperf":  # its duration begins with the first request
        assert found["throughput_rps"] == pytest.approx(keys["request_throughput"], rel=1e-6)


def test_the_weights_and_elements_of_guidellm_are_its_own(runs: dict[str, Run], tmp_path: Path) -> None:
    """Its inter-token latency is the mean over tokens, and a percentile is a value that was measured."""
    run = _data.measured(runs["open"]).requests
    tpot_ms, later = sample(metrics()["tpot"], run, succeeded(run)) * 1e3, run["output_tokens"].to_numpy() - 1
    read = json.loads(written(runs["open"], "guidellm", tmp_path).read_text())["benchmarks"][0]
    found = read["metrics"]["inter_token_latency_ms"]["successful"]

    assert found["mean"] == pytest.approx(np.average(tpot_ms, weights=later[later > 0]))
    assert any(found["percentiles"]["p99"] == pytest.approx(value, rel=1e-12) for value in tpot_ms)
    rates = read["metrics"]["requests_per_second"]["successful"]
    assert rates["mean"] == pytest.approx(len(run) / read["duration"])
    busy = read["metrics"]["request_concurrency"]["successful"]["mean"]
    e2e_s = sample(metrics()["e2e"], run, succeeded(run))
    assert busy == pytest.approx(e2e_s.sum() / read["duration"], rel=1e-3)  # Little's law


@pytest.mark.parametrize(
    ("file", "form", "why"),
    [
        ("guidellm.json", "vllm", "does not hold the gaps between tokens"),
        ("sglang-detailed.jsonl", "guidellm", "does not hold when requests were sent"),
        ("vllm-aggregate.json", "aiperf", "holds no single requests"),
    ],
)
def test_what_a_file_does_not_have_is_not_made_up(file: str, form: str, why: str) -> None:
    """A converted file would show gaps, or a rate, that were not measured."""
    with pytest.raises(UsageError, match=why):
        "".join(compose.render_run(form, imports.open(GOLDEN / file)[0]))


@pytest.mark.parametrize("form", [*KEPT, "llm-d"])
def test_a_run_in_which_everything_failed_is_written_too(form: str, tmp_path: Path) -> None:
    """Its figures have no values, and it is the run that a user wants to show to others."""
    broken = json.loads((GOLDEN / "vllm-detailed.json").read_text())
    rows = len(broken["errors"])
    (tmp_path / "failed.json").write_text(json.dumps(broken | {"errors": ["boom"] * rows, "output_lens": [0] * rows}))
    run = imports.open(tmp_path / "failed.json")[0]
    (tmp_path / "made").mkdir()

    back = imports.open(written(run, form, tmp_path / "made"))[0]

    assert rows == back.info.summary.requests
    assert 0 == back.info.summary.status["ok"]


def test_the_command_names_what_the_format_cannot_hold(runs, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(runs["open"].path)

    assert 0 == main(["report", path, "--format", "vllm:detailed=false"])
    printed = capsys.readouterr()
    assert "ttfts" not in json.loads(printed.out)
    assert "does not hold when requests were due" in printed.err
    assert 2 == main(["report", path, "--format", "aiperf"])
    assert "--out FOLDER" in capsys.readouterr().err
    assert 0 == main(["report", path, "--format", "aiperf", "--out", "made"])
    assert sorted(p.name for p in Path("made").iterdir()) == ["profile_export.jsonl", "profile_export_aiperf.json"]
    capsys.readouterr()
    assert 0 == main(["report", path, path, "--format", "llm-d", "--out", "report.json"])
    assert 0 == main(["report", "report.json", "--format", "json"])


def test_every_format_of_a_tool_says_what_it_omits() -> None:
    """A reader of the file would look for what it cannot have."""
    tools = {*registry.names("reports")} & {*registry.names("results")}

    assert tools == {*KEPT, "llm-d"}
    assert all(compose.omitted(form) for form in tools)


def test_a_report_as_yaml_is_read_as_the_same(runs: dict[str, Run], tmp_path: Path) -> None:
    """llm-d writes its reports as YAML."""
    yaml = pytest.importorskip("yaml")
    path = written(runs["open"], "llm-d", tmp_path)
    again = path.with_suffix(".yaml")
    again.write_text(yaml.safe_dump(json.loads(path.read_text())))

    assert imports.open(path)[0].info.aggregates == imports.open(again)[0].info.aggregates
    again.write_text("a: &x [1]\nb: *x\n")
    with pytest.raises(UsageError, match="aliases"):
        imports.open(again)
