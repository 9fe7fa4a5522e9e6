"""Policies that know objectives, programs or lengths, against what their rules say of a few requests (K20)."""

import numpy as np
import pyarrow as pa
import pytest

from backends.serving.batch import Sequence
from backends.sim import Sim
from harness.api import DeadlineSlo, Extra, LatencySlo, ProgramSlo, Request, RequestRecord
from harness.data.records import to_table
from harness.experiments.rescore.objectives import tokens
from harness.experiments.trial import simulate
from harness.metrics.objective import Seen, parse_slo, score
from harness.options import Given, run_spec
from harness.registry import make

ONE = "max_seqs=1,interval=1"
"""One seat, given anew at every step: who is first in rank runs."""


def ended(policy, requests):
    """Ids in the order in which they end."""
    return [record.request_id for record in Sim(policy=policy).simulate(requests)]


def at_once(outputs, prompt=100, slo=None):
    """Requests that arrive together."""
    return [Request(i, 0.0, prompt, n, extra=Extra(slo=slo)) for i, n in enumerate(outputs)]


@pytest.mark.parametrize("seed", range(3))
def test_without_p_the_shortest_answers_go_first(seed):
    """With equal prompts and deadlines the density falls with the time that is left, and nothing else (K20.a)."""
    outputs = np.random.default_rng(seed).permutation(np.arange(5, 205, 10)).tolist()
    expected = np.argsort(outputs).tolist()

    assert expected == ended(f"gmax:p=0,predictor=oracle,{ONE}", at_once(outputs, slo=DeadlineSlo(1e6)))


def test_who_cannot_be_in_time_any_more_goes_last():
    """A short answer that is late whatever happens would take the seat of one that still earns something."""
    step_s = Sim()._model.decode_s(1, 200)
    late = Request(0, 0.0, 100, 50, extra=Extra(slo=DeadlineSlo(20 * step_s)))
    others = [Request(i, 0.0, 100, n, extra=Extra(slo=DeadlineSlo(1e3))) for i, n in ((1, 100), (2, 80))]

    assert [2, 1, 0] == ended(f"gmax:predictor=oracle,{ONE}", [late, *others])
    assert [0, 2, 1] == ended(f"gmax:predictor=oracle,p=0,{ONE}", [late, *others])


def test_the_calls_of_a_program_share_one_density():
    """A program ends with its last call: the short ones alone are of no use."""
    program = Extra(program=1, slo=ProgramSlo(1e4))
    calls = [Request(i, 0.0, 100, n, extra=program) for i, n in enumerate((10, 400))]
    alone = Request(2, 0.0, 100, 100, extra=Extra(slo=DeadlineSlo(1e4)))

    assert 2 == ended(f"gmax:predictor=oracle,{ONE}", [*calls, alone])[0]


def test_the_earliest_deadline_goes_first():
    """Answers, programs and single tokens are due at times of one clock."""
    slos = [DeadlineSlo(50.0), ProgramSlo(20.0), LatencySlo(30.0, 10.0), DeadlineSlo(10.0)]
    requests = [Request(i, 0.0, 100, 5, extra=Extra(program=i, slo=slo)) for i, slo in enumerate(slos)]

    assert [3, 1, 0, 2] == ended(f"edf:{ONE}", requests)  # the third is due token by token, its last one at 70 s


def test_programs_that_were_served_wait():
    """The second call of a program must not pass for a new one, nor its attained service be forgotten."""
    first = Request(0, 0.0, 10, 50, extra=Extra(program=7))
    later = [Request(1, 90.0, 10, 5, extra=Extra(program=7, stage=1)), Request(2, 90.0, 10, 45)]

    assert [0, 2, 1] == ended(f"autellix:quantum=50,{ONE}", [first, *later])
    assert [0, 1, 2] == ended(f"autellix:quantum=60,{ONE}", [first, *later])


def trial(policy, seed, rate_rps=7, requests=400):
    """A run of the setting of the comparison, far above what the system can serve."""
    given = {"workload": "slo-mix", "model": "llama3.1-8b", "policy": policy}
    options = {
        "backend": "sim:kv=paged:blocks=8192",
        "rate": str(rate_rps),
        "requests": str(requests),
        "seed": str(seed),
        **given,
    }
    return simulate(run_spec(Given(options), None))


def test_bounds_that_nothing_breaks_make_goodput_throughput():
    """Tokens within objectives must be the tokens where objectives are infinite (K20.b)."""
    table = trial("gmax", 0).table
    slo = parse_slo("ttft=1e9,tpot=1e9,task=1e9")
    place = table.schema.get_field_index("slo_task_s")
    unbounded = table.set_column(place, table.schema.field(place), pa.nulls(len(table), pa.float64()))
    good = tokens(Seen(unbounded), slo)

    assert good.output.tolist() == table["output_tokens"].to_pylist()
    assert good.prompt.tolist() == table["prompt_tokens"].to_pylist()


@pytest.mark.nightly
def test_knowing_the_lengths_never_hurts():
    """An oracle below the online policy by more than chance would be a bug of one of them (K20.c)."""
    gains = []
    for seed in range(5):
        good = []
        for policy in ("gmax:predictor=oracle", "gmax"):
            made = trial(policy, seed)
            found = tokens(Seen(made.table), made.plan.slo)
            good.append(int(found.prompt.sum()) + 8 * int(found.output.sum()))
        gains.append(good[0] / good[1] - 1)
    half_width = 2.776 * np.std(gains, ddof=1) / 5**0.5  # t of 4 degrees of freedom

    assert np.mean(gains) >= -half_width


def test_a_late_first_token_is_not_made_good_by_a_fast_end():
    """The artifact of JITServe counts such a request where its end-to-end deadline holds (K20.e)."""
    late = [1.5 + 0.01 * k for k in range(10)]  # all its tokens come before the line ends at 1 + 9 * 0.1 s
    table = to_table([RequestRecord(0, 0.0, 0.0, late, None, 100, 10, 10, "ok")])
    slo = parse_slo("ttft=1,tpot=0.1")

    assert not score(table, slo).met.any()
    assert 0 == tokens(Seen(table), slo).prompt.sum()
    assert 4 == tokens(Seen(table), slo).output.sum()  # tokens 6 to 9 are on the line again


def learnt(spec, lengths):
    """A predictor that has seen answers of these lengths end."""
    predictor = make("predictors", spec)
    for i, tokens_out in enumerate(lengths):
        predictor.on_finish(sequence(i, tokens_out, emitted=tokens_out))
    return predictor


def sequence(number, output, emitted=0):
    """A sequence so far on its way."""
    seq = Sequence(Request(number, 0.0, 10, output), number, 0.0)
    seq._emitted = emitted
    return seq


def test_estimates_are_those_of_the_answers_that_were_longer():
    """An answer that has passed the estimate is among the long ones: the estimate follows (conditional quantile)."""
    lengths = list(range(1, 101))

    assert [91, 96, 100] == [learnt("quantile:q=0.9", lengths).output_tokens(sequence(0, 1, n)) for n in (0, 50, 99)]
    assert [512, 1200] == [learnt("quantile", lengths[:0]).output_tokens(sequence(0, 1, n)) for n in (0, 600)]
    assert [200] == [learnt("quantile:window=2", [5, 200, 200]).output_tokens(sequence(0, 1, 5))]
    drawn = [learnt("past", lengths).output_tokens(sequence(i, 1, 40)) for i in range(400)]
    assert set(drawn) <= set(lengths[40:])
    assert np.mean(lengths[40:]) == pytest.approx(np.mean(drawn), rel=0.05)


def test_the_error_of_a_noisy_oracle_is_that_of_the_request():
    """Fresh noise at each look would average out; noise of one's own for each policy would not be common."""
    predictor = make("predictors", "noisy-oracle:log_sd=0.8")
    errors = [np.log(predictor.output_tokens(sequence(i, 10_000)) / 10_000) for i in range(4000)]

    assert 0 == pytest.approx(np.mean(errors), abs=4 * 0.8 / 4000**0.5)
    assert 0.8 == pytest.approx(np.std(errors), rel=0.05)
    assert errors[7] == np.log(make("predictors", "noisy-oracle").output_tokens(sequence(7, 10_000)) / 10_000)
    assert errors != [np.log(make("predictors", "noisy-oracle:seed=1").output_tokens(sequence(i, 10_000)) / 10_000)
                      for i in range(4000)]  # fmt: skip
    assert 10_000 == make("predictors", "oracle").output_tokens(sequence(0, 10_000))
