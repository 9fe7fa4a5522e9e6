"""Pairs of runs: their order, what happens when one fails, and going on after a kill."""

import math
import signal
import sys
from pathlib import Path

import pytest

from harness.errors import BackendError, NotValid, UsageError
from harness.experiments.compare import gates, verdict
from harness.experiments.compare.pair_log import Command
from harness.experiments.compare.runner import Judgement, run_pairs

SCRIPT = """
import json, pathlib, sys
side, seed, out, log, info = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), *sys.argv[4:6]
with open(log, "a") as file:
    file.write(f"{side}{seed} ")
times = open(log).read().split().count(f"{side}{seed}")
info = eval(info, {"seed": seed, "times": times})
if "exit" in info:
    print("bench: it broke.", file=sys.stderr)
    sys.exit(info["exit"])
if "run" in info:
    out.mkdir(parents=True)
    (out / "run.json").write_text(json.dumps(info["run"]))
else:
    print(json.dumps(info))
"""

GOOD = "{'run': {'schema': 2, 'clock': 'wall', 'verdict': {'valid': True}, 'schedule': {'sha256': f'{seed:064d}'}}}"


@pytest.fixture
def side(tmp_path):
    """A factory of sides: a script that notes its call and leaves what an expression in `seed` and `times` says."""
    script = tmp_path / "side.py"
    script.write_text(SCRIPT)

    def make(name, leaves=GOOD, *, ours=False):
        words = (sys.executable, "-I", "-S", str(script), name, "{seed}", "{out}", str(tmp_path / "calls"), leaves)
        return Command(f"{name} {leaves[:20]}", words, ours=ours)

    return make


@pytest.fixture
def calls(tmp_path):
    """The calls so far, such as ['A0', 'B0']."""

    def read():
        return (tmp_path / "calls").read_text().split()

    return read


@pytest.fixture
def pairs(tmp_path, side):
    """Makes pairs in `out`; the judge says what `says` holds for the number of pairs, else that it is open.

    The pairs at the places `unusual` are always unlike the others.
    """
    judged = []

    def make(wanted, base=GOOD, head=GOOD, *, out="out", says=(), unusual=(), say=lambda _: None, ours=False,
             alike=True, **more):  # fmt: skip
        def judge(folders, alpha):
            judged.append((len(folders), alpha))
            return Judgement(dict(says).get(len(folders), "inconclusive"), unusual, alike)

        sides = (side("A", base, ours=ours), side("B", head, ours=ours))
        return run_pairs(sides, wanted, tmp_path / out, judge, say, **more)

    make.judged = judged
    return make


def test_sides_take_turns_in_going_first(pairs, calls):
    """A machine that gets slower all the time makes the candidate look slower."""
    made = pairs(4)

    assert ["A0", "B0", "B1", "A1", "A2", "B2", "B3", "A3"] == calls()
    assert ["AB", "BA", "AB", "BA"] == [row.order for row in made.attempts]


def test_both_runs_of_a_pair_have_its_seed(pairs, tmp_path):
    """Base and head are compared on different traffic, or all pairs on the same."""
    made = pairs(3, first_seed=7)

    assert [7, 8, 9] == [row.seed for row in made.attempts]
    assert [f"{seed:064d}" for seed in (7, 8, 9)] == [row.schedule_hash for row in made.attempts]
    assert [(tmp_path / f"out/pairs/0{n}-seed{n + 6}/base") for n in (1, 2, 3)] == [base for base, _ in made.folders]


@pytest.mark.parametrize(("alike", "attempts"), [(True, 3), (False, 4)])
def test_a_pair_with_late_requests_is_made_again_only_where_they_decide(pairs, alike, attempts):
    """Two servers were never compared from a busy machine: each pair was thrown away, though nothing hung on it."""
    failed = "[{'check': 'lateness', 'state': 'failed'}]"
    late = f"{{'run': {{'schema': 2, 'verdict': {{'valid': seed != 1 or times > 1}}, 'checks': {failed}}}}}"
    made = pairs(3, base=late, alike=alike)

    assert attempts == len(made.attempts)
    assert 3 == len(made.folders)


def test_an_invalid_run_is_made_again_with_its_pair(pairs, calls):
    """One disturbed run costs the whole night, or disappears without a word."""
    invalid = "{'run': {'schema': 2, 'verdict': {'valid': seed != 1 or times > 1, 'text': 'not valid: late'}}}"
    made = pairs(3, head=invalid)

    assert ["A0", "B0", "B1", "B1", "A1", "A2", "B2"] == calls()
    assert [(1, True, False), (2, False, False), (2, True, True), (3, True, False)] == [
        (row.pair, row.valid, row.repeated) for row in made.attempts
    ]
    assert "head: not valid: late" == made.attempts[1].why
    assert (3, None) == (len(made.folders), made.exit_code)


def test_a_pair_unlike_the_others_is_made_again_once_and_the_second_attempt_counts(pairs, calls):
    """A noisy neighbour in one pair hides the loss in all; or pairs are made until they please."""
    made = pairs(3, unusual=(1, 2))

    assert ["A0", "B0", "B1", "A1", "A2", "B2", "B1", "A1", "A2", "B2"] == calls()
    assert [(1, True), (2, False), (3, False), (2, True), (3, True)] == [(row.pair, row.valid) for row in made.attempts]
    assert [False, True, True, False, False] == [row.unusual for row in made.attempts]
    assert ["01-seed0", "02-seed1-again", "03-seed2-again"] == [base.parent.name for base, _ in made.folders]
    assert ([3], None) == (made.interim, made.exit_code)
    assert 10 == len(calls()) and pairs(3, unusual=(1, 2)).folders == made.folders  # nothing is left to resume


def test_a_pair_stays_where_its_second_attempt_fails(pairs, calls):
    """A usable pair is lost, or tried for ever."""
    late = "{'run': {'schema': 2, 'verdict': {'valid': seed != 1 or times == 1, 'text': 'not valid: late'}}}"
    made = pairs(3, head=late, unusual=(1,))

    assert ["A0", "B0", "B1", "A1", "A2", "B2", "B1"] == calls()
    assert [(1, True), (2, True), (3, True), (2, False)] == [(row.pair, row.valid) for row in made.attempts]
    assert (["01-seed0", "02-seed1", "03-seed2"], None) == ([b.parent.name for b, _ in made.folders], made.exit_code)


def test_unusual_pairs_are_made_again_before_an_analysis_counts(pairs):
    """`auto` stops at a verdict on pairs that are going to change."""
    made = pairs("auto", says={3: "equivalent"}, unusual=(0,))

    assert ([3], [1, 2, 3, 1]) == (made.interim, [row.pair for row in made.attempts])


def test_a_simulator_is_never_unlike_the_others(pairs, calls):
    """Exact results are computed again."""
    virtual = GOOD.replace("wall", "virtual")
    pairs(3, virtual, virtual, unusual=(0,))

    assert 6 == len(calls())


@pytest.mark.parametrize(
    ("leaves", "code", "attempts"),
    [
        (
            "{'run': {'schema': 2, 'verdict': {'valid': False, 'text': 'not valid: late'}}} if seed > 2 else " + GOOD,
            4,
            5,
        ),
        ("{'exit': 3} if seed > 2 else " + GOOD, 3, 2),
    ],
)
def test_a_pair_that_fails_again_and_again_ends_the_comparison(pairs, leaves, code, attempts):
    """A server that has died would run for hours, or its pairs are left out and the rest is called good; or a machine
    that is busy for a minute ends the comparison."""
    made = pairs(5, head=leaves)

    assert code == made.exit_code
    assert [True] * 3 + [False] * attempts == [row.valid for row in made.attempts]
    assert f"pair 4 could not be made in {attempts} attempts" in made.notes[-1]


@pytest.mark.parametrize(
    ("leaves", "error"),
    [("{'exit': 3}", BackendError), ("{'run': {'schema': 2, 'verdict': {'valid': False, 'text': 'late'}}}", NotValid)],
)
def test_without_any_pair_there_is_no_answer(pairs, leaves, error):
    """A comparison without a single pair gets a verdict."""
    with pytest.raises(error, match="no pair could be made; head: "):
        pairs(3, head=leaves)


def test_a_simulator_that_fails_is_not_run_again(pairs, calls):
    """What can only fail the same way is run twice."""
    with pytest.raises(NotValid):
        pairs(3, base="{'run': {'schema': 2, 'clock': 'virtual', 'verdict': {'valid': False, 'text': 'late'}}}")

    assert ["A0"] == calls()


def test_sides_that_send_different_requests_are_not_compared(pairs):
    """A rate in one of two commands makes that side look slow."""
    with pytest.raises(NotValid, match="did not send the same requests in pair 1"):
        pairs(3, head=GOOD.replace("{seed:064d}", "{seed + 1:064d}"))


def test_auto_analyses_after_some_pairs_and_stops_when_it_is_clear(pairs):
    """Ten pairs are made for what five have shown, or each analysis is taken for the only one."""
    made = pairs("auto", says={5: "regressed"})

    assert [(3, 0.003), (5, 0.003)] == pairs.judged
    assert ([3, 5], 0.003, 5) == (made.interim, made.alpha, len(made.folders))


def test_analyses_together_have_the_requested_alpha(pairs):
    """Another rate of false alarms would be that of the default."""
    made = pairs("auto", says={5: "regressed"}, alpha=0.04)

    assert [(3, 0.01), (5, 0.01)] == pairs.judged
    assert (0.01, 0.04) == (made.alpha, pairs(3, out="fixed", alpha=0.04).alpha)


def test_how_alpha_is_shared_is_one_line_of_the_answer(pairs):
    """An alpha of 0.3% stands where 1% was given."""
    auto, fixed = pairs("auto", says={5: "regressed"}), pairs(3, out="fixed")

    assert (
        "each of the interim analyses (after 3, 5 pairs) has alpha 0.3%, so that all of them together have 1%."
        in auto.notes
    )
    assert [] == fixed.notes


def test_pairs_made_again_are_named_in_the_answer(pairs):
    """A pair disappears without a word."""
    assert ["pairs 2, 3 were unlike the others and made again once"] == [n[:53] for n in pairs(3, unusual=(1, 2)).notes]


def test_auto_ends_after_its_last_analysis(pairs):
    """What stays open is measured for ever."""
    made = pairs("auto")

    assert [3, 5, 7, 10] == made.interim == [n for n, _ in pairs.judged]
    assert 10 == len(made.folders)


def test_one_pair_of_simulators_is_enough(pairs, calls):
    """A deterministic result is computed ten times."""
    virtual = GOOD.replace("wall", "virtual")
    made = pairs(None, virtual, virtual)

    assert ["A0", "B0"] == calls()
    assert ([1], 0.01) == (made.interim, made.alpha)


def test_real_systems_get_as_many_pairs_as_they_need(pairs):
    """Without --pairs one run of each side decides."""
    assert [3, 5] == pairs(None, says={5: "equivalent"}).interim


def test_fewer_than_three_pairs_of_real_runs_are_refused(pairs):
    """Two pairs are run and paid for, from which nothing can follow."""
    with pytest.raises(NotValid, match="--pairs 2 proves nothing in real time"):
        pairs(2)


def test_pairs_added_after_an_answer_count_as_another_analysis(pairs, calls):
    """Adding pairs until the answer pleases gives one wrong call in ten, and would be reported as one in a hundred."""
    first, more = pairs(3), pairs(5)

    assert (0.01, 0.003) == (first.alpha, more.alpha)
    assert [3, 5] == more.interim
    assert 10 == len(calls())


def test_the_answer_of_an_interrupted_comparison_counts_as_an_analysis(pairs):
    """Ctrl-C, an analysis, and more pairs as long as the answer does not please."""

    def interrupt(line):
        if line.startswith("pair 4 of 5"):
            signal.raise_signal(signal.SIGINT)

    first, more = pairs(5, say=interrupt), pairs(5)

    assert ([3], 0.01) == (first.interim, first.alpha)
    assert ([3, 5], 0.003) == (more.interim, more.alpha)


def test_a_killed_comparison_goes_on_with_whole_pairs(pairs, calls, tmp_path):
    """Half a pair of yesterday is completed today, and the machine's mood of a day decides."""

    def kill(line):
        if line.startswith("pair 2 of 3, seed 1: base"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pairs(3, say=kill)
    made = pairs(3)

    assert ["A0", "B0", "B1", *["B1", "A1"], "A2", "B2"] == calls()
    assert [1, 2, 3] == [row.pair for row in made.attempts]


def test_two_comparisons_in_one_folder_do_not_mix(pairs):
    """The second of two equal commands drops the runs that the first one is making."""

    def again(line):
        if line.startswith("pair 1 of 3, seed 0: head"):
            pairs(3)

    with pytest.raises(UsageError, match="is being written by another comparison"):
        pairs(3, say=again)


def test_a_finished_comparison_makes_no_more_runs(pairs, calls):
    """The same command again measures everything again."""
    pairs(3)
    again = pairs(3)

    assert 6 == len(calls())
    assert 0.01 == again.alpha


def test_pairs_of_something_else_are_not_added_to(pairs, tmp_path):
    """Pairs of two candidates get one verdict."""
    pairs(3)
    with pytest.raises(UsageError, match="compares other runs: its head is"):
        pairs(3, head="{'other': 1}")
    with pytest.raises(UsageError, match="begins with seed 0, not 1"):
        pairs(3, first_seed=1)


def test_a_folder_of_something_else_is_left_alone(pairs, tmp_path):
    """A folder of notes becomes one of runs, or is emptied."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")

    with pytest.raises(UsageError, match="which is no part of a comparison"):
        pairs(3)
    assert ["notes.txt"] == [path.name for path in (tmp_path / "out").iterdir()]


def test_a_command_that_leaves_nothing_is_a_mistake_of_its_writer(pairs, calls):
    """A command without a result is run again and again."""
    with pytest.raises(UsageError, match="no result file of a known tool"):
        pairs(3, base="{}")

    assert ["A0"] == calls()


def test_wrong_usage_of_a_run_is_reported_in_its_own_words(pairs):
    """A wrong option in a command is called a failed server."""
    with pytest.raises(UsageError, match="it broke"):
        pairs(3, base="{'exit': 2}", ours=True)


def test_equal_salts_at_one_server_are_reported(pairs):
    """The second run of each pair finds its prompts in the prefix cache, and the candidate wins or loses by that."""
    salted = GOOD.replace("'clock'", "'backend': {'url': 'http://h:1/v1', 'salt': 'x'}, 'clock'")
    shared = pairs(3, salted, salted)
    own = pairs(3, salted, salted.replace("'x'", "'y'"), out="own")

    assert ["base and head share the server at http://h:1/v1"] == [note[:47] for note in shared.notes]
    assert [] == own.notes


def test_requests_that_were_given_up_are_reported(pairs):
    """A run begins while the server still works on what the one before gave up."""
    cut = GOOD.replace("'clock'", "'outcome': {'ended': 'finished', 'cut': 4 if seed == 1 else 0}, 'clock'")
    made = pairs(3, cut)

    assert ["pair 2, base: 4 requests were given up"] == [note[:38] for note in made.notes]


def test_time_left_is_printed(pairs):
    """A comparison could take minutes or hours."""
    lines = []
    pairs(3, say=lines.append)

    assert "pair 1 of 3, seed 0: base" == lines[0]
    assert lines[2].startswith("pair 2 of 3, seed 1: head (about ")


def test_base_is_known_to_be_compared_with_itself(pairs, side, tmp_path):
    """Noise is taken for a difference between two systems, though there is only one."""
    same = side("A")
    made = run_pairs((same, same), 3, tmp_path / "aa", lambda *_: Judgement("inconclusive"), lambda _: None)

    assert made.same
    assert not pairs(3).same


def test_noise_of_a_set_up_is_that_of_a_run(side, tmp_path):
    """The scatter of a difference, sqrt(2) larger, is called the noise of a run."""
    from harness.experiments.compare.live import same_sides

    one = side("A")
    made = run_pairs((one, one), 3, tmp_path / "aa", lambda *_: Judgement("inconclusive"), lambda _: None)
    [tpot, failed] = gates.defaults(["tpot", "failed"])
    slower = verdict.Series(tpot.quantity, {}, (1.0,) * 4, tuple(math.exp(loss) for loss in (0.02, -0.02, 0.02, -0.02)))
    equal = verdict.Series(failed.quantity, {}, (0.0,) * 4, (0.0,) * 4)
    rows = verdict.paired([(tpot, slower), (failed, equal)], 0.01)

    assert ["base is compared with itself: the noise of a run is 1.6% (tpot mean), from 3 pairs."] == same_sides(
        made, rows
    )


def test_paths_stay_inside_the_folder(pairs, tmp_path):
    """A folder that is moved or archived loses its runs."""
    import json

    pairs(3)
    kept = json.loads((tmp_path / "out" / "pairs.json").read_text())

    assert ["pairs/01-seed0/base", "pairs/02-seed1/base", "pairs/03-seed2/base"] == [
        row["base_run"] for row in kept["pairs"]
    ]
    assert all(not Path(row["head_run"]).is_absolute() for row in kept["pairs"])


def test_a_search_of_a_simulator_is_made_once(pairs, side, tmp_path, calls):
    """A search with seeds of its own is repeated as if it were noisy."""
    script = "import json, pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(); "
    script += "(p / 'capacity.json').write_text(json.dumps({'schema': 1, 'kind': 'capacity', 'clock': 'virtual'}))"
    search = Command("search", (sys.executable, "-c", script, "{out}"))
    made = run_pairs((search, search), None, tmp_path / "out", lambda *_: Judgement("inconclusive"), lambda _: None)

    assert (1, []) == (len(made.folders), made.notes)


def test_one_schedule_for_all_pairs_is_reported(pairs, tmp_path):
    """Five pairs of one schedule are taken for five schedules."""
    script = f"import json, pathlib, sys; seed, p = 0, pathlib.Path(sys.argv[1]); p.mkdir(); info = {GOOD}['run']; "
    plain = Command("x", (sys.executable, "-c", f"{script}(p / 'run.json').write_text(json.dumps(info))", "{out}"))
    made = run_pairs((plain, plain), 3, tmp_path / "out", lambda *_: Judgement("inconclusive"), lambda _: None)

    assert ["base has no {seed}", "head has no {seed}"] == sorted(note[:18] for note in made.notes)
