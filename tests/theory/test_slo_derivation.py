"""SLOs as multiples of a decode step, after Sarathi-Serve."""

import json

import pytest

from harness import registry
from harness.cli import main
from harness.errors import UsageError
from harness.experiments.theory.batching import decode_step_s, derive, published, tokens
from harness.metrics.slo import parse

LINEAR = "linear:base=0.01,decode_seq=0.0002,context_token=0.0000001"
STEP_S = 0.01 + 32 * 0.0002 + 32 * 4096 * 1e-7


def test_a_decode_step_is_that_of_32_sequences_with_4k_tokens_each():
    """An SLO derived at another batch would be called Sarathi's, and be another one."""
    assert STEP_S == pytest.approx(decode_step_s(registry.make("latency", LINEAR)), rel=1e-15)


def test_strict_is_5_steps_and_relaxed_25():
    """The two SLOs of a paper would be compared with other ones."""
    strict, relaxed, other = derive(0.04, "strict,relaxed,7.5x")

    assert ("strict", 0.2, "p99:itl=0.2") == (strict.name, strict.itl_p99_s, strict.slo)
    assert ("relaxed", 1.0, "p99:itl=1") == (relaxed.name, relaxed.itl_p99_s, relaxed.slo)
    assert pytest.approx(0.3) == other.itl_p99_s
    assert 99.0 == parse(strict.slo).bounds[0].percentile


def test_the_published_slos_are_those_of_the_paper():
    """Sarathi-Serve, table 3: a digit off, and its figures could not be repeated."""
    assert {
        "mistral-7b": (0.1, 0.5),
        "yi-34b": (0.2, 1.0),
        "llama2-70b": (1.0, 5.0),
        "falcon-180b": (1.0, 5.0),
    } == {name: (row.strict_s, row.relaxed_s) for name, row in published().items()}


def test_a_batch_passes_every_stage_of_a_pipeline():
    """Two stages would halve the time between tokens, which they do not."""
    stage = registry.make("latency", "roofline", model="llama2-70b", tp=4, pp=2)

    assert 2 * stage.decode_s(32, 32 * 4096) == decode_step_s(stage, stages=2)


def test_the_command_prints_what_slo_takes(capsys):
    """The derived SLO would have to be typed over by hand."""
    code = main(["theory", "slo", "--latency", LINEAR, "--format", "json"])
    result = json.loads(capsys.readouterr().out)

    assert 0 == code
    assert STEP_S == pytest.approx(result["decode_step_s"], rel=1e-15)
    assert [5 * STEP_S, 25 * STEP_S] == [parse(row["slo"]).bounds[0].limit for row in result["derived"]]
    assert "model" not in result["system"]  # constants are of no model


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_the_answer_names_step_slos_and_the_published_ones(capsys, form):
    """A reader could not tell ours from the paper's."""
    code = main(["theory", "slo", "--model", "yi-34b", "--tp", "2", "--format", form])
    output = capsys.readouterr().out

    assert 0 == code
    assert "A decode step of yi-34b on a100-80g, tp 2 (roofline)" in output
    assert "Sarathi-Serve, table 3" in output
    assert "times the strict SLO published for Yi-34B" in output
    assert "87.9 ms a step" in " ".join(output.split())
    assert form == "markdown" or max(map(len, output.splitlines())) <= 100


def test_what_the_system_cannot_hold_is_reported(capsys):
    """An SLO for a batch that does not fit into memory would look measured."""
    main(["theory", "slo", "--model", "opt-13b"])
    output = capsys.readouterr().out

    assert "opt-13b takes at most 2,048 tokens" in output
    assert "does not fit" in output


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["sol"], "No theory command named 'sol'. Did you mean 'slo'?"),
        (["slo", "--derive", "stric"], "No SLO to derive named 'stric'. Did you mean 'strict'?"),
        (["slo", "--context", "4kb"], "--context must be a number of tokens above 0"),
        (["slo", "--latency", "linear", "--pp", "2"], "'linear' knows no pipeline stages"),
        (["slo", "--model", "opt-1b"], "No model named 'opt-1b'"),
    ],
)
def test_wrong_usage_is_one_sentence(capsys, arguments, output):
    """A mistyped name would end in a traceback, or be taken for another."""
    code = main(["theory", *arguments])

    assert 2 == code
    assert output in capsys.readouterr().err


def test_tokens_are_counted_in_plain_numbers_or_in_1024s():
    """4k would be 4,000 here and 4,096 in the paper."""
    assert (4096, 4096, 300) == (tokens("4096", "x"), tokens("4k", "x"), tokens("300", "x"))
    with pytest.raises(UsageError):
        tokens("0", "x")
