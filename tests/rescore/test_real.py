"""Runs as they are made, under `bench slo`: prefixes, tasks, remote servers."""

import dataclasses
import json

import numpy as np
import pytest

from harness.cli import main
from harness.data.codec import encode
from harness.data.run_json import RunInfo
from harness.experiments.rescore import side_by_side
from harness.experiments.rescore.answer import RescoreOptions, answer
from harness.experiments.rescore.reading import grouped, of_run, sources
from harness.metrics.objective import parse_slo


@pytest.fixture
def simulated(tmp_path, capsys):
    """`simulated(workload, *options)`: the folder of a simulated run."""

    def make(workload, *options):
        path = tmp_path / workload
        arguments = ["run", "--workload", workload, "--backend", "sim", "--out", str(path), "--quiet", "--no-html"]
        assert 0 == main([*arguments, *options])
        capsys.readouterr()
        return path

    return make


def test_the_own_slo_scores_as_the_run_itself_did(simulated):
    """`bench slo RUN` would contradict the summary of the run."""
    path = simulated("chatbot", "--requests", "300", "--warmup", "mser5")
    (source,) = sources(path)
    (run,) = answer([source], RescoreOptions()).runs
    summary = json.loads((path / "run.json").read_text())["summary"]

    assert source.left_out > 0
    assert summary["requests"] == run.measured
    assert summary["attainment"] == run.slos[0].attainment
    assert summary["binding"] == run.slos[0].binding
    for rate in ("throughput_rps", "output_tps"):
        assert summary[rate] == getattr(run, rate)
    assert summary["goodput_rps"] == run.slos[0].goodput_rps
    assert summary["metrics"]["ttft"]["p99"] == run.latencies["ttft"].p99


def test_requests_are_grouped_by_the_prefix_they_share(simulated):
    """It would not show that the prompts of one tenant are never cached."""
    (source,) = sources(simulated("shared-prefix", "--requests", "200"))
    code, names = grouped(source, "prefix")
    first = [ids[0] if ids else None for ids in source.schedule["prefix_ids"].to_pylist()]
    order = {r: i for i, r in enumerate(source.schedule["id"].to_pylist())}
    of = [first[order[r]] for r in source.table["request_id"].to_pylist()]

    assert len(names) > 2
    for i, name in enumerate(names):
        blocks = {b for b, c in zip(of, code.tolist(), strict=True) if c == i}
        if name.startswith("prefix "):
            assert {int(name.removeprefix("prefix "))} == blocks


def test_tasks_and_classes_of_a_mix_are_scored(simulated, capsys):
    """A compound task would be judged by its single requests only."""
    assert 0 == main(
        [
            "slo",
            str(simulated("slo-mix", "--requests", "60", "--model", "llama3.1-8b")),
            "--tokens",
            "--by",
            "class,turn",
        ]
    )
    shown = " ".join(capsys.readouterr().out.split())

    assert "tasks, as a whole" in shown
    assert "class compound" in shown
    assert "turn 2" in shown


def test_a_role_chunk_that_the_wire_saw_is_vllm_0_32s_first_token(remote_run):
    """Two versions of one tool, which differ by a factor of 60 in TTFT, would look alike."""
    run = remote_run(wire={"first_event_s": lambda exchange: exchange.first_event_s - 0.05})
    found = side_by_side.side_by_side(of_run(run), parse_slo("ttft=0.25"), side_by_side.made(["vllm", "vllm-0.32"]))
    values = {c.name: c.values for c in found.columns}

    assert 0.05 == pytest.approx(values["vllm"]["ttft_mean_s"] - values["vllm-0.32"]["ttft_mean_s"])


@pytest.mark.parametrize("slo", ["ttft=0.1253,tpot=0.1", "itl=0.02003"])
def test_bounds_within_the_clients_error_stay_open(remote_run, slo):
    """A new bound could be met by the client's own error, without a warning."""
    run = remote_run()
    floor = {name: {"p50_s": 1e-3, "p99_s": 1e-2} for name in ("ttft", "itl", "tpot", "e2e", "lateness")}
    source = of_run(dataclasses.replace(run, info=RunInfo.of({**encode(run.info), "floor": floor})))
    info = answer([source], RescoreOptions(objectives=(parse_slo(slo),), goals=(0.5,), fail_under=0.5))

    assert info.runs[0].slos[0].resolution.undecided
    assert info.exit_code in (4, 5)


def test_cached_shares_make_groups(mixture, run):
    """Warm and cold prompts would stand in one group."""
    table = mixture(8)
    cached = [0, 1, 0, 300, None, 0, 0, 0]
    prompts = [100, 100, 50, 400, 5, 6, 7, 8]
    for name, values in (("cached_tokens", cached), ("prompt_tokens", prompts)):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), [values])
    code, names = grouped(of_run(run(table)), "cached")

    assert ["nothing cached", "under half cached", "half or more cached", "not known"] == names
    assert [0, 1, 0, 2, 3, 0, 0, 0] == np.asarray(code).tolist()
