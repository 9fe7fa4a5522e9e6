"""Output tokens per request are compared before any speed: shorter answers are less work, not a faster system."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from harness.experiments.compare import answer, gates, lengths, pairing, refusals, verdict
from harness.experiments.compare.answer import Settings
from harness.experiments.compare.pairing import Matched, Pair
from reports.answers import compare, exports

RESULTS = Path(__file__).parent.parent / "golden" / "results"
SEEDS = range(3)


def with_column(run, name, values):
    place = run.requests.schema.get_field_index(name)
    field = run.requests.schema.field(place)
    return replace(run, requests=run.requests.set_column(place, field, pa.array(values, field.type)))


def answering(run, change):
    """The run with other numbers of output tokens: `change(tokens)`."""
    tokens = run.requests["output_tokens"].to_numpy().astype(float)
    return with_column(run, "output_tokens", np.maximum(1, np.rint(change(tokens))).astype(np.int64))


@pytest.fixture
def pairs(stored):
    """Three pairs under a wall clock; the answers of the heads went through `change`."""

    def made(change, **head):
        return [
            Pair(stored(seed, clock="wall"), answering(stored(seed, clock="wall", **head), change)) for seed in SEEDS
        ]

    return made


def compared(pairs, **settings):
    return answer.compare(Matched(tuple(pairs)), Settings(**settings))


def test_a_head_with_three_quarters_shorter_answers_is_not_equivalent(pairs):
    """It was 'equivalent, exit 0': TTFT and TPOT of a quarter of the work are as good."""
    info = compared(pairs(lambda tokens: tokens / 4, slower=0.8))

    assert (info.verdict, info.exit_code) == ("regressed", 1)
    assert ["output_tokens"] == [row.metric for row in info.gates]
    assert -75 == pytest.approx(info.gates[0].change_pct, abs=1)
    assert "output tokens per request fell by 7" in info.text and "no speed is compared" in info.text
    assert {"tpot", "ttft"} <= {row.metric for row in info.shown}


def test_many_fewer_tokens_in_few_requests_are_never_equivalent(pairs):
    """Of a handful of requests no test can tell a quarter of the work from chance, and the speed was as good."""
    few = [
        Pair(*(replace(run, requests=run.requests[:3]) for run in (pair.base, pair.head)))
        for pair in pairs(lambda tokens: np.where(np.arange(len(tokens)) % 3, tokens / 10, tokens * 1.1))
    ]
    info = compared(few)

    assert "same" == info.output_lengths[0].change and info.output_lengths[0].change_pct < -10
    assert (info.verdict, info.exit_code) == ("inconclusive", 5)
    assert "may be chance or less work, so no speed decides" in info.text


def test_shorter_answers_stand_in_every_form(pairs):
    """A job summary or a test report would hide what decided."""
    info = compared(pairs(lambda tokens: tokens / 4))

    [gates] = next(section for section in compare.document(info).sections if section.key == "losses").blocks
    assert "output tokens per request" in [row[0] for row in gates.rows]
    assert "<testcase" in exports.junit(info) and "<failure" in exports.junit(info)


def test_longer_answers_are_not_comparable(pairs):
    """More work is no regression of the speed."""
    info = compared(pairs(lambda tokens: tokens * 1.05, slower=1.3))

    assert (info.verdict, info.exit_code, info.gates) == ("refused", 4, [])
    assert ["output-lengths"] == [stop.field for stop in info.refused]
    assert "% more) in the head; --allow-different output-lengths compares all the same" in info.text
    assert "<error" in exports.junit(info)


@pytest.mark.parametrize("factor", [0.25, 1.05])
def test_other_lengths_are_compared_on_request_and_reported(pairs, factor):
    """A new model answers otherwise, and its TPOT is still of interest."""
    info = compared(
        pairs(lambda tokens: tokens * factor), gates=gates.parse("ttft"), allowed=refusals.checked("output-lengths")
    )

    assert "equivalent" == info.verdict
    assert ["output-lengths"] == [each.field for each in info.allowed_differences]
    assert "allowed-difference" in {each.code for each in info.warnings}


def test_a_fall_of_half_a_percent_is_no_other_work(pairs):
    """One token in two hundred is within what counting differs by."""
    info = compared(pairs(lambda tokens: np.where(np.arange(len(tokens)) % 60, tokens, tokens * 0.7)))

    assert -1 < info.output_lengths[0].change_pct < 0
    assert "equivalent" == info.verdict


def test_lengths_that_differ_by_chance_do_not_cry_wolf(stored):
    """With sampling every answer has another length in every run; a mean that is 3 % lower is not shorter."""
    rng = np.random.default_rng(8)

    def sampled(run):
        return answering(run, lambda tokens: rng.lognormal(4.5, 0.8, len(tokens)))

    made = [Pair(sampled(stored(seed, clock="wall")), sampled(stored(seed, clock="wall"))) for seed in SEEDS]
    info = compared(made)
    row = next(each for each in info.shown if each.metric == "output_tokens")

    assert "equivalent" == info.verdict
    assert abs(row.change_pct) > 1 and row.low_pct < 0 < row.high_pct
    assert ["only a fall by"] == [
        w.message[w.message.index("only") :][:14] for w in info.warnings if w.code == "output-lengths"
    ]


def test_equal_lengths_leave_the_answer_as_it_was(pairs):
    """A row that always says 'the same' would go unread."""
    info = compared(pairs(lambda tokens: tokens))

    assert "same" == info.output_lengths[0].change
    assert "output_tokens" not in {row.metric for row in (*info.gates, *info.shown)}


def test_requests_that_failed_on_one_side_play_no_part(stored):
    """A head that gives up its longest answers would look shorter, where it fails."""
    base = [stored(seed, clock="wall") for seed in SEEDS]
    longest = [np.argsort(run.requests["output_tokens"].to_numpy())[-30:] for run in base]
    heads = [
        with_column(run, "status", ["timeout" if i in gone else "ok" for i in range(len(run.requests))])
        for run, gone in zip(base, map(set, longest), strict=True)
    ]
    info = compared([Pair(*sides) for sides in zip(base, heads, strict=True)])

    assert "same" == info.output_lengths[0].change
    assert ("regressed", "failed") == (info.verdict, info.gates[-1].metric)


def test_a_faster_head_that_fails_more_is_never_better_whatever_the_gates(stored):
    """`--gate tpot` alone called a head that rejects half of the requests 'improved'."""
    heads = [stored(seed, clock="wall", slower=0.8) for seed in SEEDS]
    heads = [with_column(run, "status", ["rejected", "ok"] * (len(run.requests) // 2)) for run in heads]
    made = [Pair(stored(seed, clock="wall"), head) for seed, head in zip(SEEDS, heads, strict=True)]
    info = compared(made, gates=gates.parse("tpot=2%:5%"))

    assert ("regressed", 1) == (info.verdict, info.exit_code)
    assert {"tpot": "improved", "failed": "regressed"} == {row.metric: row.verdict for row in info.gates}


def test_one_shorter_and_one_longer_point_of_a_sweep_are_not_comparable(pairs):
    """Of several exit codes 4 comes before 1."""
    shorter, longer = pairs(lambda tokens: tokens / 2), pairs(lambda tokens: tokens * 2)
    made = [replace(p, point={"rate": rate}) for rate, at in (("1", shorter), ("2", longer)) for p in at]
    info = compared(made)

    assert ("refused", 4) == (info.verdict, info.exit_code)
    assert ["fewer)", "more)"] == [stop.head.rpartition(" ")[2] for stop in info.refused]


def test_files_of_another_tool_are_compared_by_their_output_tokens(tmp_path):
    """Results of vllm bench serve with a quarter of the tokens were equivalent too."""
    stored = json.loads((RESULTS / "vllm-detailed.json").read_text())
    n = [max(1, len(gaps) // 4) for gaps in stored["itls"]]
    short = stored | {
        "output_lens": [k + 1 for k in n],
        "itls": [g[:k] for g, k in zip(stored["itls"], n, strict=True)],
    }
    for name, values in (("base", stored), ("head", short)):
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    base, head = (pairing.opened(tmp_path / f"{name}.json") for name in ("base", "head"))
    info = answer.compare(pairing.match(base, head), Settings(allowed=frozenset({"pairs"})))

    assert ("regressed", ["output_tokens"]) == (info.verdict, [row.metric for row in info.gates])


def calls(seed, n, factor, times=300):
    """Shares of (shorter, longer) calls over sampled answers of `n` prompts in base and head."""
    rng, series = np.random.default_rng(seed), verdict.Series(gates.OUTPUT_TOKENS, {}, (1.0,), (1.0,))
    found = []
    for _ in range(times):
        base, head = np.exp(5 + 0.6 * rng.normal(size=(2, n)))
        found.append(lengths.Answered(base, factor * head, n, series, exact=False).decided(0.01)[0])
    return found.count("shorter") / times, found.count("longer") / times


@pytest.mark.parametrize("n", [25, 200])
def test_the_rule_on_sampled_lengths_holds_its_alpha_and_finds_what_is_large(n):
    """A false alarm in every tenth nightly run would be switched off."""
    shorter, longer = calls(n, n, 1.0)

    assert max(shorter, longer) <= 0.03  # 1 % each, of 300 draws
    assert calls(n, n, 0.25)[0] == 1.0


@pytest.mark.parametrize(
    ("mde_pct", "unseen"),
    [
        (None, "no fall of"),
        (100.0, "no fall of"),
        (99.99, "no fall of"),
        (8.0, "only a fall by 8% or more of"),
        (0.0, None),
    ],
)
def test_a_constant_difference_is_not_called_a_fall_by_0_percent(pairs, mde_pct, unseen):
    """'Only a fall by 0% or more would have been found', and 'by 100% or more' where none would."""
    [row] = lengths.compared(pairs(lambda tokens: tokens), [0.0] * len(SEEDS), 0.01)
    found = lengths.warning(structs.replace(row, change="same", losses=[0.001], mde_pct=mde_pct, requests=60))

    assert (unseen is None) == (found is None)
    assert unseen is None or unseen in found
