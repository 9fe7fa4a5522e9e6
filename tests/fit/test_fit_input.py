"""Wrong input of a fit is reported in one sentence."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.experiments.fit.steps import read

GOOD = "n_pf,B,ctx,seconds\n" + "".join(f"{i % 7},{1 + i % 5},{100 * i},0.{1 + i}\n" for i in range(20))


def _fit(*arguments: str) -> int:
    return main(["fit", *arguments])


def test_rows_that_cannot_be_are_left_out(tmp_path: Path) -> None:
    """A negative count is no load; a fit to it would tell a wrong cost per token."""
    path = tmp_path / "steps.csv"
    path.write_text(GOOD + "-5,1,10,0.1\n5,1,-10,0.1\n")

    found = read([path])

    assert (20, 2) == (len(found), found.left_out)


GOOD_ROWS = "1,9,9,.1,.1\n" * 20
LINEAR = ["--latency", "linear"]


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        (GOOD_ROWS + "2,9,9,-.1,.1\n", LINEAR, "row 21: ttft_s must be a number of at least 0 or empty, got '-.1'"),
        ("2024-01-01T00:00:01,9,9,.1,.1\n", LINEAR, "arrival_s must be a number of at least 0"),
    ],
)
def test_what_a_fit_of_requests_cannot_take_is_refused(
    tmp_path: Path, rows: str, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option would have no effect, or dates and tokens before their request be fitted as times of a system."""
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,tpot_s\n" + rows)

    code = _fit("--requests", str(path), *more)

    assert (2, True) == (code, words in capsys.readouterr().err)
