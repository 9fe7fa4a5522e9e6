"""`bench reproduce`: rows are run by their own commands, stored as they come, and compared with what is published."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import registry
from harness.cli import _terminal, main
from harness.errors import UsageError
from harness.experiments import answers, reproduce

ROWS = """
subject = "Batching"

[[row]]
id = "S91.a"
published = "half the time"
source = "figure 1"
badge = "formula"
run = ["bench theory prefill:execution=80ms --over rate=5,10 --out t.csv"]
value = "t[5.0, 'one GPU'].mean_ttft_s / t[10.0, 'one GPU'].mean_ttft_s"
band = [0.3, 0.6]

[[row]]
id = "S91.b"
published = "3 times the TTFT"
source = "figure 2"
badge = "simulated"
run = [
    "bench run --backend sim --latency abc:distserve --policy vllm-v0 --rate 2 --requests 30 --out a",
    "bench run --backend sim --latency abc:distserve --policy vllm-v0 --rate 2 --requests 30 --out b",
]
value = "a.ttft_p50 / b.ttft_p50"
seeds = 3
band = [2.5, 3.5]
note = "The two are the same."

[[row]]
id = "S91.c"
published = "scored again"
source = "figure 3"
badge = "simulated"
run = [
    "bench run --backend sim --latency abc:distserve --policy vllm-v0 --rate 2 --requests 30 --out a",
    "bench slo ./a --slo ttft=100 > s.csv",
]
value = "s['attainment', 'all'].value"

[[row]]
id = "S92"
published = "another program"
source = "its repository"
badge = "exact"
check = "tests/x.py"

[[row]]
id = "S94"
published = "another number"
source = "its repository"
badge = "real"
check = "tests/x.py"
missed = true
"""
BROKEN = """
[[row]]
id = "S93"
published = "1"
source = "figure 4"
badge = "formula"
run = ["bench theory prefil --out t.csv"]
value = "t.x"
band = [1, 1]
"""


@pytest.fixture
def rows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has the rows of one system stand for all, and commands run in a folder of the test."""
    (tmp_path / "rows").mkdir()
    monkeypatch.chdir(tmp_path)
    module = SimpleNamespace(__name__="systems.tgi", __file__=str(tmp_path / "rows" / "tgi.py"))
    monkeypatch.setattr(registry, "find", lambda *_: module)
    monkeypatch.setattr(registry, "names", lambda _: ["tgi"])
    return lambda text: (tmp_path / "rows" / "tgi.toml").write_text(text, encoding="utf-8") and None


def test_rows_are_compared_and_stored(
    rows_of: Callable[[str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published number would be printed without the one that is obtained, or measured again at every call."""
    rows_of(ROWS)
    code = main(["reproduce", "--all", "--workers", "1", "--page", "page.md"])
    printed = capsys.readouterr()
    info = answers.of("bench-runs/reproduce")
    monkeypatch.setattr(reproduce.pool, "Processes", None)  # a command that ran again would fail
    again = main(["reproduce", "--all"])

    assert code == again == 1
    assert isinstance(info, reproduce.ReproduceAnswer)
    assert ["holds", "misses", "informs", "needs a clone", "misses"] == [row.verdict for row in info.rows]
    assert 0 < info.rows[0].value < 0.6
    assert (1.0, 3) == (info.rows[1].value, info.rows[1].seeds)
    assert 1.0 == info.rows[2].value
    assert "0 of 2 rows hold; 1 of 1 formulas hold; missed: S91.b, S94; need a clone: 1; without a band: 1." in (
        " ".join(printed.out.split())
    )
    assert "S92, S94: In a clone: python -m pytest -m '' tests/x.py" in printed.out
    assert printed.err.startswith("Commands to run: 5; results are stored in ")
    assert 5 == printed.err.count(" s: bench ")  # equal commands run once
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## Batching\n" in page
    assert "| S91.b | tgi | 3 times the TTFT | 1.00 (1.00 to 1.00) | 2.50 to 3.50 | misses |" in page
    assert "```sh\nbench theory prefill:execution=80ms --over rate=5,10 --out t.csv\n# t\\[" not in page
    assert "```sh\npython -m pytest -m '' tests/x.py\n```" in page


def test_a_command_that_fails_costs_its_row_alone(
    rows_of: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The row would look like a miss, or all others would be lost."""
    rows_of(ROWS + BROKEN)
    code = main(["reproduce", "S91.a", "S93", "--workers", "1"])
    printed = " ".join(capsys.readouterr().out.split())

    assert 3 == code
    assert "S93: No closed form named 'prefil'. Did you mean 'prefill'?" in printed
    assert "1 of 1 formulas hold; cannot run: S93." in printed


def test_a_run_that_is_not_valid_is_the_reason(rows_of: Callable[[str], None]) -> None:
    """Exit code 4 alone does not tell that the server rejected requests, or that the machine was too slow."""
    rows_of(ROWS.replace("abc:distserve", "abc:distserve --max-failed 0%").replace("sim ", "sim:kv=paged:blocks=5 "))

    assert 3 == main(["reproduce", "S91.c", "--workers", "1"])
    (row,) = answers.of("bench-runs/reproduce").rows
    assert re.fullmatch(r"A command ended with exit code 4; 'bench report .*/out' shows why\.", row.reason)


def test_ctrl_c_loses_nothing_that_was_measured(
    rows_of: Callable[[str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of commands would begin anew."""
    rows_of(ROWS)

    def interrupt(text: str) -> None:
        if text.startswith("[1/"):
            raise KeyboardInterrupt

    monkeypatch.setattr(_terminal, "note", interrupt)
    code = main(["reproduce", "S91.b", "--quick", "--workers", "1"])
    err = capsys.readouterr().err

    assert 130 == code
    assert "interrupted after 1 of 1 commands; rerun the command to continue." in err
    assert 1 == len([*Path("bench-runs/reproduce").glob("*/output.json")])


def test_runs_of_the_engine_come_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Side by side they end their steps late, and are not valid on any machine."""
    together: list[list[str]] = []

    class Processes:
        def __init__(self, workers: int | None) -> None: ...
        def __enter__(self) -> "Processes":
            return self

        def __exit__(self, *_: object) -> None: ...
        def map(self, _: object, lines: list[tuple[str, ...]]) -> list[tuple[tuple[str, ...], reproduce.Output]]:
            together.append([line[0] for line in lines])
            return [(line, reproduce.Output(exit_code=2, csv="", last_line="", seconds=0)) for line in lines]

    monkeypatch.setattr(reproduce.pool, "Processes", Processes)
    backends = {"a": "engine:executor=paced", "b": "sim", "c": "engine", "d": "sim"}
    calls = {tmp_path / n: reproduce.Call((n, backend), n, tmp_path / n, n, ()) for n, backend in backends.items()}

    assert len([*reproduce._executed(calls, {}, lambda words: (words, 0), None)]) == 4
    assert together == [["b", "d"], ["a"], ["c"]]


def test_wrong_usage_is_one_sentence(refusals: Callable[..., None]) -> None:
    """A mistyped name would run every row for an hour."""
    refusals("wrong-reproduce.txt")


RUN = """run,class,metric,unit,statistic,value,low,high
r,,attainment,share,mean,0.9,,
r,,ttft,s,p50,0.2,,
r,,ttft,s,p99,0.4,,
r,chat,ttft,s,p50,0.1,,
r,chat,ttft,s,p99,0.3,,
"""
SWEEP = "policy,rate,ttft_p50_s,note\nfcfs,1,0.5,x\nfcfs,2,0.75,\nsjf,1,0.25,\n"
KNEE = "length,batch,share\n256,1,0.02\n256,128,1\n"
TABLES = {"run": reproduce.read_csv(RUN), "sweep": reproduce.read_csv(SWEEP), "knee": reproduce.read_csv(KNEE)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("run.ttft_p50", 0.2),
        ("run.attainment", 0.9),
        ("run['chat'].ttft_p99 / run.ttft_p50", 1.5),
        ("sweep['fcfs', 2].ttft_p50_s - -1", 1.75),
        ("max(sweep['fcfs', 1].ttft_p50_s, sweep['sjf'].ttft_p50_s) * 2 + 1", 2.0),
        ("median(1, 5, 2)", 2.0),
        ("largest_factor(1.2, 0.8)", 1.25),
        ("knee[256, 1].share", 0.02),
        ("sweep[1, 'sjf'].ttft_p50_s + sweep['fcfs', 2].ttft_p50_s", 1.0),
        ("max(sweep['fcfs'].ttft_p50_s) / min(sweep.ttft_p50_s)", 3.0),
    ],
)
def test_the_value_of_a_row_is_arithmetic_over_what_its_commands_print(text: str, value: float) -> None:
    assert value == pytest.approx(reproduce.evaluate(text, TABLES))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runn.ttft_p50", "No output of its commands named 'runn'. Did you mean 'run'?"),
        ("run.ttft_p05", "No column of 'run' with a value named 'ttft_p05'. Did you mean 'ttft_p50'?"),
        ("sweep.ttft_p50_s", "'sweep.ttft_p50_s' is in 3 rows; name one by its cells: OUT['cell'].COLUMN."),
        ("sweep['fcfs'].ttft_p50_s", "'sweep['fcfs'].ttft_p50_s' is in 2 rows; name one"),
        ("sweep['lcfs'].ttft_p50_s", "No row of 'sweep' holds lcfs."),
        ("sweep['fcfs', 1].note", "'sweep['fcfs', 1].note' is the text 'x'; name a column of numbers."),
        ("run.ttft_p50 / 0", "divides by 0"),
        ("run.ttft_p50 < 1", "holds 'run.ttft_p50 < 1'; it may hold OUT.COLUMN"),
        ("__import__('os')", "named '__import__'. Known: largest_factor, max, median, min."),
        ("max()", "'max()' has no value"),
        ("run", "'run' has no value"),
        ("1 +", "'1 +' is no expression"),
    ],
)
def test_what_has_no_value_is_one_sentence(text: str, message: str) -> None:
    """An author of a row would get a traceback, or a number of another column."""
    with pytest.raises(UsageError) as error:
        reproduce.evaluate(text, TABLES)

    assert message in str(error.value)


def test_an_answer_is_stored_as_json(rows_of: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    """A script would have to read the table."""
    rows_of(ROWS)
    main(["reproduce", "S92", "--format", "json", "--quiet"])

    assert json.loads(capsys.readouterr().out) == json.loads(Path("bench-runs/reproduce/reproduce.json").read_text())


def test_rows_of_closed_forms_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A change of a formula, or of a column that a row names, would show when all rows are run, which takes an hour."""
    ids = ["E1", "E2", "E3", "S12.a", "S12.c", "S28", "S29", "S30", "S31"]

    assert 0 == main(["reproduce", *ids, "--out", str(tmp_path), "--quiet", "--workers", "1"])
    assert "16 of 16 formulas hold." in capsys.readouterr().out
