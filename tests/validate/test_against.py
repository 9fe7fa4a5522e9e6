"""`bench validate --against`: pairs, errors, targets, and how they are shown."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from harness.cli import main, validate
from harness.errors import UsageError
from harness.experiments.validate import answer as validate_answer
from harness.experiments.validate.answer import Pair, Target, ValidateAnswer, Validation, validation
from reports import answers as pages
from reports import figures
from reports.answers import validate as validate_report
from reports.document import Cell
from reports.figures.compare import NO_TIMES

PAIRS = (
    Pair("slow", "ttft_s", 2.0, 1.0, calibrated=True, x=1.0, curve="vllm"),
    Pair("middle", "ttft_s", 2.0, 2.1, x=2.0, curve="vllm"),
    Pair("fast", "ttft_s", 2.0, 1.6, x=3.0, curve="vllm"),
    Pair("middle", "met_pct", 90.0, 93.0, x=2.0, curve="vllm"),
    Pair("fast", "met_pct", 50.0, 46.0, x=3.0, curve="vllm"),
)


def answer(limit: float) -> ValidateAnswer:
    """The answer of one comparison with a limit on the mean error of TTFT."""
    targets = (validate_answer.target(PAIRS, "ttft_s", validate_answer.MEAN, limit, "another <b>simulator</b>: 40 %"),)
    return validate_answer.answer(
        [validation("made", "A made-up server", ("Nothing is real.",), PAIRS, targets)], "bench ..."
    )


def test_errors_leave_out_what_the_calibration_saw() -> None:
    """A simulator scored on what it was fitted to would look as good as its fit."""
    times, shares = validate_answer.errors(PAIRS, "ttft_s"), validate_answer.errors(PAIRS, "met_pct")

    assert (2, 1) == (times.pairs, times.calibrated)
    assert pytest.approx((12.5, -7.5, 20.0)) == (times.mean, times.bias, times.largest)
    assert "fast" == times.worst
    assert pytest.approx((3.5, -0.5, math.sqrt(12.5))) == (shares.mean, shares.bias, shares.rmse)


def test_a_target_holds_for_the_worse_half_of_the_settings() -> None:
    """Constants that fit one half by chance would hold the mean of all."""
    how = f"{validate_answer.MEAN}, {validate_answer.WORSE_HALF}"

    assert 20.0 == pytest.approx(validate_answer.target(PAIRS, "ttft_s", how, 15).obtained)
    assert 5.0 == pytest.approx(validate_answer.target(PAIRS[:2], "ttft_s", how, 15).obtained)


def test_nothing_left_to_score_is_refused() -> None:
    """An error over no measurement would hold every target."""
    with pytest.raises(UsageError, match="left to score"):
        validate_answer.errors(PAIRS[:1], "ttft_s")


@pytest.mark.parametrize(("limit", "code"), [(12.6, 0), (12.4, 1)])
def test_exit_code_tells_a_missed_target(limit: float, code: int) -> None:
    """A nightly job would stay green while the simulator drifts away from the measurements."""
    assert code == answer(limit).exit_code
    assert (code == 0) is Target("ttft_s", validate_answer.MEAN, limit, 12.5).holds


def test_what_is_written_to_a_file_still_tells_its_verdict(monkeypatch, capsys, tmp_path) -> None:
    """Exit code 1 beside 'Written to' alone would look like a fault in writing."""
    made = answer(12.4)
    monkeypatch.setattr(validate_answer, "answer", lambda *_: made)
    monkeypatch.setattr(validate, "_compared", lambda *_: [])

    assert 1 == main(["validate", "--against", "made.toml", "--out", f"{tmp_path}/it.md"])
    assert "made: 1 of 1 targets missed: ttft 12.5% (limit 12.4%)." in " ".join(capsys.readouterr().out.split())


def test_report_has_measured_simulated_and_verdict() -> None:
    """A miss that is not shown as a miss would fool its reader."""
    document = validate_report.document(answer(10.0))
    targets, _, pairs = document.sections[0].blocks

    assert ("1 OF 1 MISSED", False) == (document.mark, document.good)
    assert "made: 1 of 1 targets missed: ttft 12.5% (limit 10.0%)." == document.findings[0].text
    assert ("10.0%", "12.5%", Cell("MISSED", good=False)) == targets.rows[0][2:5]  # type: ignore[union-attr]  # tables
    assert ("slow", "ttft", "2.00 s", "1.00 s", "seen by the calibration") == pairs.rows[0]  # type: ignore[union-attr]
    assert ("middle", "ttft", "2.00 s", "2.10 s", "+5.0%") == pairs.rows[1]  # type: ignore[union-attr]


def test_page_has_errors_and_plane() -> None:
    """How far the simulator is off would not be seen."""
    info = answer(10.0)
    drawn = {name: row.draw(info.validations[0]) for name, row in figures.of("validate").items()}
    page = pages.page(info, Path("validate.html"))

    assert ["real_plane"] == list(drawn)
    assert "Simulated times within 10% of the measured ones: 1 of 2." == drawn["real_plane"].finding
    assert "1 OF 1 MISSED" in page
    assert "another &lt;b&gt;simulator" in page


def test_a_published_sentence_wraps_and_a_short_cell_does_not() -> None:
    """The column 'published' would be cut at the edge of the page, and 'MISSED' broken in two."""
    page = pages.page(answer(10.0), Path("validate.html"))

    assert '<td class="text"><bdi>another &lt;b&gt;simulator' in page
    assert '<td class="text word bad"><bdi>MISSED' in page


def test_figures_say_why_they_are_not_drawn() -> None:
    """An empty axis would look like no error."""
    one = row_of([structs.replace(PAIRS[3], x=None)])

    assert [NO_TIMES] == [row.draw(one) for row in figures.of("validate").values()]


def row_of(pairs: list[Pair]) -> Validation:
    """The row of a comparison without targets."""
    return validate_answer.answer([validation("", "", (), tuple(pairs), ())], "").validations[0]


def test_wrong_usage_is_one_sentence(refusals: Callable[..., None]) -> None:
    """A traceback would tell a user nothing about what to type instead."""
    refusals("wrong-validate.txt")
