"""Which rows the leaderboard scores, and that nothing vanishes between a row and its table."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from published import leaderboard, served
from published.served import Row

EXACT = """
REQUIREMENTS = ()
RELEASED = "today"


def predict(row):
    return {times}
"""


def row(gpu: str = "h100", clients: int = 4, ttft_s: float = 0.1, tpot_s: float = 0.01) -> Row:
    """A row of one replica of Llama-3.1-8B under vLLM."""
    formats = (("linear", "bf16"), ("kv", "bf16"))
    return Row("x", gpu, "vllm", "llama3.1-8b", "nan", formats, 1, 1, 1, 64, 16, clients, ttft_s, tpot_s, "mean")


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes the file of a tool that answers with an expression of a row."""

    def written(name: str, times: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(EXACT.format(times=times))
        return path

    return written


def test_repeated_rows_are_one_with_their_medians() -> None:
    """A setting that was run on ten days would count as ten."""
    rows = leaderboard.folded([row(ttft_s=0.1), row(ttft_s=0.2), row(ttft_s=0.6), row(clients=8)])

    assert [(4, 0.2), (8, 0.1)] == [(one.clients, one.ttft_s) for one in rows]


def test_a_sample_has_each_group_by_its_share_and_is_the_same_again() -> None:
    """The drawn rows could be of one GPU, or be drawn again until they please."""
    rows = [row("h100", i + 1) for i in range(90)] + [row("h200", i + 1) for i in range(30)]
    sample = leaderboard.drawn(rows, 12)

    assert 9 == sum(one.gpu == "h100" for one in sample)
    assert sample == leaderboard.drawn(rows, 12)
    assert len(set(sample)) == 12


def test_every_row_is_answered_or_refused_by_each_tool(tmp_path: Path, tool: Callable[[str, str], Path]) -> None:
    """A tool that raises, ends, or answers nonsense would be scored on the rows that it likes."""
    rows = [row(clients=4), row("h200"), row(clients=64)]
    answers = {
        "bench": "(0.2, 0.01)",
        "other": "(0.1, 0.02) if row['clients'] < 64 else 1 / 0",
        "ends": "__import__('os')._exit(1) if row['gpu'] == 'h200' else (0.1, 0.01)",
        "none": "(float('nan'), 0.01)",
    }
    scored = {name: leaderboard.score(tool(name, times), rows, tmp_path) for name, times in answers.items()}
    written = leaderboard.tables(rows, scored)

    assert {"bench": 3, "other": 2, "ends": 2, "none": 0} == {name: len(one.answered) for name, one in scored.items()}
    assert all(len(rows) == len(one.answers) for one in scored.values())
    assert "Rows that bench, other, ends answer: 1." in written["all"]
    assert "ZeroDivisionError" in written["refused"]
    assert "| bench, the same rows | 100.0% | 0.693 | 0.69 | +0.69 | 0.0% |" in written["pairs"]
    assert "| other, 2 rows | 0.0% | 0.000 | 0.00 | +0.00 | 100.0% | 0.693 |" in written["pairs"]
    assert not {"ttft_s", "tpot_s"} & set(leaderboard.described(rows[0]))


def test_groups_in_which_another_is_nearer_are_shown() -> None:
    """Misses of this simulator would be left out of its own page."""
    rows = [row(clients=i + 1) for i in range(leaderboard.FEWEST)]
    theirs, mine = np.zeros((len(rows), 2)), np.array([[0.5, 0.0]] * len(rows))

    (line,) = leaderboard._nearer("other", rows, theirs, mine)

    assert [0.5, "TTFT", "other"] == [line[0], line[1][2], line[1][3]]


def test_a_page_is_filled_between_its_marks() -> None:
    page = "a\n<!-- measured: all -->\nold\n<!-- end -->\nb\n<!-- measured: own -->\n<!-- end -->\n"

    assert "a\n<!-- measured: all -->\n\nnew\n\n<!-- end -->\nb\n<!-- measured: own -->\n<!-- end -->\n" == (
        leaderboard.filled(page, {"all": "new"})
    )


def test_a_table_of_ones_own_is_read_as_rows(tmp_path: Path) -> None:
    """Measurements of a user could not be scored without code."""
    path = tmp_path / "mine.csv"
    head = "gpu,engine,model,precision,formats,tp,dp,ep,prompt,output,clients,ttft_s,tpot_s,kind"
    path.write_text(f"{head}\nh100,vllm,llama3.1-8b,nan,linear=bf16 kv=bf16,1,1,1,64,16,4,0.1,0.01,mean\n")

    (found,) = leaderboard.read(path)

    assert row() == replace(found, source="x")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_targets_on_all_rows(shared_data: Path, tmp_path: Path) -> None:
    """A row would go on to say that mean errors of 25 % of TTFT and 10 % of TPOT are missed."""
    rows = leaderboard.folded(served.rows(shared_data)[0])
    scored = leaderboard.score(leaderboard.TOOLS / "bench.py", rows, tmp_path)
    means = np.abs(np.exp(scored.logs(rows, range(len(rows)))) - 1).mean(axis=0)

    assert [False, False] == (means <= (0.25, 0.1)).tolist()
