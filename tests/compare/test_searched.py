"""Capacity searches as sides of a comparison: a value for each seed, or one where a pair is two searches."""

import json
import math

import pytest

from harness.cli import main
from harness.data import codec
from harness.errors import NotValid, UsageError
from harness.experiments.capacity.capacity_json import CapacityAnswer
from harness.experiments.compare import pairing


def of(info):
    """The search with these contents."""
    return codec.of(CapacityAnswer, info)


@pytest.fixture
def search():
    """What `bench capacity` stores, as far as a comparison reads it."""

    def made(factor=1.0, seeds=6, goals=(0.9, 0.99), **changed):
        knees = {str(seed): math.log(2.0 * factor * (1 + 0.04 * (-1) ** seed)) for seed in range(seeds)}
        answers = [
            {"goal": goal, "capacity_rps": 2.0 * factor / (1 + i), "knees": {s: k - i for s, k in knees.items()}}
            for i, goal in enumerate(goals)
        ]
        info = {
            "schema": 1, "kind": "capacity", "clock": "virtual", "workload": "chatbot", "definition": "joint",
            "spec": {"workload": "chatbot", "policy": "orca"}, "backend": {"backend": "sim", "model": "opt-13b"},
            "slo": {"text": "ttft=0.25", "bounds": [], "goal": 0.9}, "run": {"requests": 2200}, "answers": answers,
        }  # fmt: skip
        return {**info, **changed}

    return made


@pytest.fixture
def stored_search(search, tmp_path):
    def made(name, **given):
        (tmp_path / name).mkdir()
        (tmp_path / name / "capacity.json").write_text(json.dumps(search(**given)), encoding="utf-8")
        return tmp_path / name

    return made


def test_each_seed_gives_its_capacity_at_every_goal(search):
    """Goals that were searched together are compared together."""
    found = pairing.by_seed("search", of(search()), None)

    assert list(found) == [0, 1, 2, 3, 4, 5]
    assert found[0]["capacity_rps"] == pytest.approx(2.08)
    assert found[0]["capacity_rps at 99%"] == pytest.approx(2.08 / math.e)


def test_another_goal_may_be_the_one_that_is_gated(search):
    """The gate is on the goal of --goal."""
    assert pairing.by_seed("search", of(search()), 0.99)[1]["capacity_rps"] == pytest.approx(1.92 / math.e)
    with pytest.raises(UsageError, match=r"0\.9, 0\.99"):
        pairing.by_seed("search", of(search()), 0.5)


def test_a_search_without_an_answer_is_reported(search):
    """Where nothing was found there is nothing to compare, and the search knows why."""
    none = search(answers=[{"goal": 0.9, "capacity_rps": None, "knees": {}, "why": "The budget is spent."}])

    with pytest.raises(NotValid, match=r"The search in .search. has no capacity.*The budget is spent"):
        pairing.by_seed("search", of(none), None)


@pytest.mark.parametrize(
    "damage",
    [{"answers": "x"}, {"answers": 3}, {"answers": [1]}, {"answers": [{}]}, {"answers": {"a": {}}}, {"spec": 3}],
)
def test_a_damaged_search_is_reported_as_such(stored_search, damage):
    """Half a file ends in a traceback."""
    with pytest.raises(UsageError, match="is damaged"):
        pairing.opened(str(stored_search("base", **damage)))


@pytest.mark.parametrize("read", [lambda info: pairing.by_seed("search", info, None), pairing.whole])
def test_a_search_that_was_killed_is_reported_as_such(read):
    """A comparison with a search that is still going on ends in a traceback."""
    with pytest.raises(UsageError, match="no answer yet"):
        read(CapacityAnswer(state="running"))


def test_a_candidate_without_any_capacity_has_regressed(stored_search, capsys):
    """A bound that is missed without load is the worst loss there is, not a mistake of the user."""
    nothing = [{"goal": 0.9, "capacity_rps": 0.0, "knees": {}, "why": "TTFT without load is 0.31 s."}]
    code = main(["compare", str(stored_search("base")), str(stored_search("head", answers=nothing))])

    assert code == 1
    assert "capacity_rps fell to 0" in " ".join(capsys.readouterr().out.split())


def test_two_searches_are_a_comparison(stored_search, capsys):
    """On the same seeds a loss of 5 % is found although the seeds scatter by 8 %."""
    base, head = stored_search("base"), stored_search("head", factor=0.95, seeds=8)
    code = main(["compare", str(base), str(head)])
    out = " ".join(capsys.readouterr().out.split())

    assert code == 1
    assert "capacity_rps fell by 5.00%" in out
    assert "pairs: 6, valid: 6, alpha 1%" in out
    assert "eeds that only the head has are left out: 6, 7" in out


def test_a_search_that_was_not_resolved_is_reported(stored_search, search, capsys):
    """Its interval was wider than requested, and the reader should know."""
    answers = [{**each, "state": "unresolved"} for each in search()["answers"]]
    main(["compare", str(stored_search("base", answers=answers)), str(stored_search("head"))])

    assert "did not reach its tolerance" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("workload", {"workload": "code"}),
        ("definition", {"definition": "separate"}),
        ("requests", {"run": {"requests": 600}}),
        ("slo", {"slo": {"text": "ttft=9"}}),
        ("horizon", {"answers": [{"goal": 0.9, "capacity_rps": 2.0, "knees": {"0": 0.7, "1": 0.6, "2": 0.8},
                                  "horizon": {"horizon_s": 72.0}}]}),
    ],
)  # fmt: skip
def test_searches_of_other_questions_are_refused(stored_search, capsys, field, changed):
    """A capacity belongs to a workload, an SLO, a definition and a length of runs."""
    assert main(["compare", str(stored_search("base")), str(stored_search("head", **changed))]) == 4
    assert f"the {field} differ" in " ".join(capsys.readouterr().out.split())


def test_a_search_is_not_compared_with_a_run(stored_search, tmp_path, capsys):
    """Nothing is common to them."""
    run = ["run", "--backend", "sim", "--requests", "20", "--quiet", "--no-html", "--out", str(tmp_path / "run")]
    assert main(run) == 0

    assert main(["compare", str(stored_search("base")), str(tmp_path / "run")]) == 4
    assert "not of a kind" in capsys.readouterr().err


def test_a_pair_of_searches_is_one_pair(stored_search):
    """Where whole searches are repeated, their seeds are no independent pairs: a noisy night moves all of them."""
    (only,) = pairing.made(stored_search("base"))

    assert (only.seed, only.values) == (None, {"capacity_rps": 2.0, "capacity_rps at 99%": 1.0})
