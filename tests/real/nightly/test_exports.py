"""The loaders of other tools take the files that bench writes in their formats, and find the same figures."""

import json
import subprocess
from pathlib import Path

import pytest

from harness.data import files, folder
from harness.experiments import imports
from harness.metrics.measure import metrics, sample, succeeded
from harness.options import Given, run_spec
from harness.runner.run import execute
from reports.document import rendered

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "results"
LOADERS = {
    # its sweeps take a result that is there for the one of the command, and its timeline draws the lists of requests
    "vllm": ("vllm", """
import contextlib, io
from pathlib import Path
from vllm.benchmarks.plot import construct_timeline_data
from vllm.benchmarks.sweep.param_sweep import ParameterSweepItem
from vllm.benchmarks.sweep.serve import run_benchmark
from vllm.benchmarks.sweep.serve_workload import _estimate_workload_value
none = ParameterSweepItem.from_record({})
with contextlib.redirect_stdout(io.StringIO()):
    data = run_benchmark(None, ["vllm"], serve_overrides=none, bench_overrides=none, run_number=0,
                         output_path=Path(path), dry_run=False)
rows = zip(data["start_times"], data["ttfts"], data["itls"], data["latencies"], data["input_lens"],
           data["output_lens"], data["errors"])
names = ("start_time", "ttft", "itl", "latency", "prompt_len", "output_tokens")
good = [dict(zip(names, row)) for row in rows if not row[-1]]
drawn = construct_timeline_data(good, [0.025, 0.05], ["fast", "slow", "slower"])
assert len(drawn) >= len(good) and _estimate_workload_value(data, "max_concurrency") > 0
found = {"ok": data["completed"], "ttft_ms": data["mean_ttft_ms"], "tpot_ms": data["mean_tpot_ms"],
         "all": len(data["ttfts"])}
"""),
    "llm-d": ("llm-d", """
from llmd_benchmark_report.core import import_benchmark_report
whole = import_benchmark_report(path).results.request_performance.aggregate
failed = whole.requests.failures + whole.requests.incomplete
found = {"ok": whole.requests.total - failed, "all": whole.requests.total,
         "ttft_ms": whole.latency.time_to_first_token.mean * 1e3,
         "tpot_ms": whole.latency.time_per_output_token.mean * 1e3}
"""),
}  # fmt: skip


def written(form: str, path: Path, at: Path) -> Path:
    """The file of a run in a format."""
    (run,) = [folder.load(path)] if path.is_dir() else imports.open(path)
    file = at / f"{form}.json"
    files.write(file, rendered.render_run(form, run))
    return file


@pytest.fixture(scope="module", params=["open", "closed", "trace", "failed"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of each kind of arrivals, and one with a request that failed."""
    given = {
        "open": {"rate": "3", "sessions": "fixed:turns=2,think=1s", "warmup": "20", "requests": "120"},
        "closed": {"arrivals": "closed:users=3,think=0s", "requests": "30"},
        "trace": {"arrivals": "gamma:cv=2", "rate": "2", "requests": "30"},
    }
    if request.param == "failed":
        return GOLDEN / "vllm-detailed.json"
    path = tmp_path_factory.mktemp("runs") / request.param
    execute(run_spec(Given({"workload": "chatbot", "backend": "sim", **given[request.param]})), out=path)
    return path


def figures(python: Path, code: str, path: Path) -> dict[str, float]:
    """What a loader finds."""
    script = f"import json\npath = {str(path)!r}\n{code}\nprint('found', json.dumps(found))\n"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=280, cwd=path.parent,
                          env={"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "HOME": str(path.parent)})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.partition("found ")[2])
    return found


@pytest.mark.parametrize("form", LOADERS)
def test_the_tools_own_loader_finds_the_same_figures(environment, source, form, tmp_path):
    """A dashboard made for the tool would refuse the file, or show other numbers."""
    name, code = LOADERS[form]
    programs = environment(name)
    found = figures(programs / "python", code, written(form, source, tmp_path))
    (run,) = [folder.load(source)] if source.is_dir() else imports.open(source)
    table = run.measured
    ours = {name: sample(metrics()[name], table, succeeded(table)).mean() * 1e3 for name in ("ttft_sent", "tpot")}

    assert found["all"] == len(table)
    assert found["ok"] == succeeded(table).sum()
    assert found["ttft_ms"] == pytest.approx(ours["ttft_sent"], rel=1e-6)
    assert found["tpot_ms"] == pytest.approx(ours["tpot"], rel=1e-6)


def test_llm_d_makes_a_report_of_it(environment, source, tmp_path):
    """Its pipeline reads vLLM's results, and would stop at a key that is missing."""
    path = written("vllm", source, tmp_path)
    code = """
from llmd_benchmark_report.native_to_br0_2 import import_vllm_benchmark as convert
report = convert(path)
report.export_yaml(path + ".yaml")
whole = report.results.request_performance.aggregate
latency = whole.latency.time_to_first_token
found = {"ttft_ms": latency.mean * (1 if latency.units == "ms" else 1e3), "all": whole.requests.total}
"""
    found = figures(environment("llm-d") / "python", code, path)
    (read,) = imports.open(path.with_name(f"{path.name}.yaml"))
    (run,) = [folder.load(source)] if source.is_dir() else imports.open(source)

    assert found["all"] == len(run.measured)
    table = run.measured
    assert read.info.aggregates["ttft"]["mean"] * 1e3 == pytest.approx(found["ttft_ms"])
    assert read.info.aggregates["completed"] == succeeded(table).sum()
    assert found["ttft_ms"] == pytest.approx(
        sample(metrics()["ttft_sent"], table, succeeded(table)).mean() * 1e3, rel=1e-6
    )
