"""A run that is written as another tool's result and read back has the same figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness import registry
from harness.cli import main
from harness.data import files, folder
from harness.data.folder import Run
from harness.errors import UsageError
from harness.experiments import imports
from harness.metrics.measure import metrics, sample, succeeded
from harness.metrics.summary import summarize, vllm_keys
from harness.options import Given, run_spec
from harness.runner.run import execute
from reports import _data
from reports.document import rendered

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "results"
KEPT = {
    "vllm": ("ttft_sent", "tpot", "itl"),
}
"""What each format has of every request."""
CLOCK_S = {"vllm": 1e-9}
"""How exact its times are: seconds of the run."""


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
    path = at / f"{form}.json"
    files.write(path, rendered.render_run(form, run))
    return path


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


@pytest.mark.parametrize("form", [*KEPT, "llm-d"])
def test_the_aggregates_are_those_of_the_requests(runs: dict[str, Run], form: str, tmp_path: Path) -> None:
    """Dashboards read the aggregates and never the requests."""
    run = _data.measured(runs["open"])
    keys = vllm_keys(run.requests, _data.slo(run), summarize(run.requests, _data.slo(run)), run.info.warmup.at_s)
    found = imports.open(written(runs["open"], form, tmp_path))[0].info.aggregates

    assert found["completed"] == keys["completed"]
    assert found["output_tokens"] == keys["total_output_tokens"]
    assert found["ttft"]["mean"] * 1e3 == pytest.approx(keys["mean_ttft_ms"], rel=1e-9)
    assert found["ttft"]["p99"] * 1e3 == pytest.approx(keys["p99_ttft_ms"], rel=1e-9)
    assert found["tpot"]["mean"] * 1e3 == pytest.approx(keys["mean_tpot_ms"], rel=1e-9)
    assert found["itl"]["p50"] * 1e3 == pytest.approx(keys["median_itl_ms"], rel=1e-9)
    assert found["throughput_rps"] == pytest.approx(keys["request_throughput"], rel=1e-6)


@pytest.mark.parametrize(
    ("file", "form", "why"),
    [
        ("guidellm.json", "vllm", "does not hold the gaps between tokens"),
        ("sglang-detailed.jsonl", "vllm", "does not hold when requests were sent"),
        ("vllm-aggregate.json", "vllm", "holds no single requests"),
    ],
)
def test_what_a_file_does_not_have_is_not_made_up(file: str, form: str, why: str) -> None:
    """A converted file would show gaps, or a rate, that were not measured."""
    with pytest.raises(UsageError, match=why):
        "".join(rendered.render_run(form, imports.open(GOLDEN / file)[0]))


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
    assert 0 == main(["report", path, path, "--format", "llm-d", "--out", "report.json"])
    assert 0 == main(["report", "report.json", "--format", "json"])


def test_every_listed_format_is_one() -> None:
    """A list of formats would name what no run can be written as."""
    assert all(callable(registry.make("reports", form).render) for form in registry.names("reports"))


def test_every_format_of_a_tool_says_what_it_omits() -> None:
    """A reader of the file would look for what it cannot have."""
    tools = {*registry.names("reports")} & {*registry.names("results")}

    assert tools == {*KEPT, "llm-d"}
    assert all(rendered.omitted(form) for form in tools)


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
