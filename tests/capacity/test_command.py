"""`bench capacity` as a user meets it."""

import json
import shlex

import pytest

from harness.cli import main
from harness.data import codec
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.capacity.store import TABLE
from harness.experiments.capacity.trials import Ledger
from reports.answers.capacity import check

SIM = ["--backend", "sim", "--latency", "abc:distserve", "--policy", "vllm-v0", "--workers", "1", "--quiet"]
QUICK = [*SIM, "--tolerance", "25%"]


@pytest.fixture
def bench(capsys):
    """Runs `bench capacity` in this process: exit code, standard output, standard error."""

    def run(*arguments):
        code = main(["capacity", *map(str, arguments)])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.mark.nightly
def test_a_killed_search_ends_as_an_undisturbed_one(bench, tmp_path):
    """Chains that were observed before a kill would be lost, or count twice."""
    arguments = [*QUICK, "--goal", "80%", "--format", "json"]
    _, out, _ = bench(*arguments, "--out", tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    ledger = Ledger(tmp_path / "cut" / TABLE)
    ledger.add(*list(Ledger(tmp_path / "whole" / TABLE))[:9])
    (tmp_path / "cut/capacity.json").write_text(
        json.dumps({**json.loads(out), "state": "running", "answers": []}), encoding="utf-8"
    )
    _, again, _ = bench(*arguments, "--out", tmp_path / "cut")

    assert json.loads(out)["answers"] == json.loads(again)["answers"]


def test_one_rate_is_answered_by_the_exit_code(bench):
    """A pull request asks whether 1 req/s is still sustained, and wants yes or no."""
    assert 0 == bench(*QUICK, "--goal", "80%", "--at", "0.5")[0]
    assert 1 == bench(*QUICK, "--goal", "80%", "--at", "30")[0]


def test_a_goal_that_no_rate_reaches_is_reported_as_unreachable(bench):
    """A capacity of 0 without a reason is no help."""
    code, out, _ = bench(*QUICK, "--slo", "ttft=0.001")

    assert code == 1
    assert "0 req/s, no rate is low enough" in out
    assert "ttft=0.001" in out


def test_a_limit_that_is_reached_forecasts_nothing_before_there_is_a_bracket(bench):
    """A number from runs that are too few would be printed, or a forecast of the next step as that of the search:
    the command that is advised failed three times, each time for a few requests more."""
    code, out, _ = bench(*SIM, "--max-requests", "3000", "--tolerance", "1%", "--format", "json")
    (answer,) = json.loads(out)["answers"]

    assert (5, "unresolved") == (code, answer["state"])
    assert answer["needs"] is None
    assert json.loads(out)["cost"]["requests"] < 3_000


def test_requests_are_those_of_a_run_and_refused_where_there_is_none(bench, tmp_path):
    """`--requests 1000`, which a sweep had advised, was the limit of the whole search."""
    code, _, err = bench(*SIM, "--requests", "1000")
    file = tmp_path / "run.toml"
    file.write_text("requests = 100\nrate = 2\nduration = 60\n")
    _, out, notes = bench(*SIM[:-1], "--config", file, "--max-requests", "1000")

    assert code == 2
    assert "--max-requests" in err
    assert "--max-requests limits this search" in notes
    assert not {"--requests", "--rate", "--duration"} & set(out.rpartition("bench capacity")[2].split())


def test_the_command_that_is_advised_searches_with_the_same_tolerance(bench):
    """The user who finishes a search of 25% by the command it printed would wait for one of 3%."""
    _, out, _ = bench(*SIM, "--max-requests", "1000", "--tolerance", "25%", "--at", "2")

    assert "--tolerance 25%" in out.rpartition("bench capacity")[2]
    assert "--at 2" in out.rpartition("bench capacity")[2]


def test_a_goal_in_the_noise_without_load_leads_to_another_goal_and_not_to_more_requests(bench):
    """The same words would come back after ten times as many requests."""
    _, out, _ = bench(*SIM, "--slo", "ttft=0.194", "--goal", "90%")

    assert "even without load attainment is hardly the goal" in " ".join(out.split())
    assert "--goal 85%" in out
    assert "--max-requests" not in out.rpartition("next")[2]


@pytest.mark.parametrize(
    ("limit", "why", "command"),
    [
        (["--max-requests", "10"], "the limit of 10 requests was reached", "--max-requests 100"),
        (["--horizon", "1ms"], "a run of 0.001 s has fewer than 2 requests", "--horizon 600s"),
    ],
)
def test_a_search_that_tried_no_rate_is_not_advised_to_take_another_goal(bench, limit, why, command):
    """Nothing had shown that the goal is near what requests meet one by one."""
    code, out, _ = bench(*SIM, *limit)

    assert (5, True) == (code, why in " ".join(out.split()))
    assert command in out.rpartition("next")[2]
    assert "over 0 s" not in out


def test_the_command_that_checks_an_answer_runs_and_finds_the_goal(bench, capsys):
    """A capacity that its own check contradicts, or a check that ends in wrong usage."""
    _, out, _ = bench(*SIM, "--horizon", "60s", "--tolerance", "10%", "--slo", "tpot=0.1", "--lengths",
                      "fixed:prompt=300,output=30", "--format", "json")  # fmt: skip
    info = codec.of(CapacityAnswer, json.loads(out))
    command = check(info, info.answers[0])
    assert 0 == main([*shlex.split(command)[1:], "--seeds", "8", "--quiet", "--no-html", "--format", "json"])
    (point,) = json.loads(capsys.readouterr().out)["points"]

    assert "ttft=" in command  # no bound is on waiting, so a request that has not begun is a miss
    assert abs(point["attainment"]["mean"] - 0.9) < 0.06


@pytest.mark.nightly
def test_markdown_holds_the_same_rate(bench):
    """A job summary would show another number than the terminal."""
    _, out, _ = bench(*QUICK, "--goal", "80%", "--format", "markdown")

    assert "**Capacity over 10 minutes at 80%: " in out
    assert "| rate (req/s) |" in out


def test_wrong_input_is_one_sentence(refusals):
    """A traceback, or a search of something else than was meant."""
    refusals("wrong-capacity.txt", *SIM)
