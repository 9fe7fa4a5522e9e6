"""Every published system says what it is and where it is published, and its rows can be read."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import registry
from harness.cli import main
from harness.cli.reproduce import options_of
from harness.errors import UsageError
from harness.experiments.reproduce import system
from reports.answers.reproduce import CELL_CHARACTERS
from workloads.catalog import load

SYSTEMS = registry.names("systems")
RESULTS = """
S01:ab S02 S03:ab S04 S05:abcde S06:abc S07:abc S08:abcd S09:ab S10:ab S11:ab S12:abcd S13:abcd S14 S15:abcd S16:abc
S17:abcd S18 S19:ab S20 S21:abc S22:abcde S23:abcd S24 S25:abcde S26:12 S27:abcde S28:abc S29:ab S30:ab S31:abc S32:ab
S33 S34 S35:ab S36:abcde S37:ab S38:abc S39:ab S40:abcd S41:abcd S42 S43 S44:ab S45:abcd S46:abcdefg S47:abc S48:abc
S49:abcd S50:ab
S51:abcdefgh S52:abcdef S53 S54:abcdefg S55:abcd S56:abc S57:abcde S58.4090:12 S58.aic:12 S58.apex:12
S58.distserve:123 S59:ab
S60:abcd S61:abc S62:abc S63 S64 S65:ab S66:ab S67:abcdef S68:abcd S69:abcd S70:ab E1 E2 E3 E4 E5 E6:abcd E7 E8 E9 E10
E11 E12:abc E13 E14 E15:ab E16 E17:ab E18 E19 E20:ab E21:ab E22 E23 I1 I2 I3 I4 I5 I6 I7 I8:ab GN4
"""
"""Published results that were compared since the first table of them: S05:abc are S05.a, S05.b and S05.c."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_names_its_source_and_has_a_part_or_a_row(name: str) -> None:
    """A file without either would reproduce nothing that a reader can check."""
    published = system(name)

    assert "\n\nSource: " in published.about
    assert published.plugins or published.rows


def test_an_id_of_a_row_is_given_once() -> None:
    """A row of one system would be printed as that of another."""
    ids = [row.id for name in SYSTEMS for row in system(name).rows]

    assert len(ids) == len(set(ids))


def test_no_published_result_is_lost() -> None:
    """A result that is missed could leave the table unseen."""
    ids = {row.id for name in SYSTEMS for row in system(name).rows}
    parts = [(name, letters) for name, _, letters in (text.partition(":") for text in RESULTS.split())]

    assert (
        set() == {f"{name}.{letter}" if letter else name for name, letters in parts for letter in letters or [""]} - ids
    )


def test_commands_of_rows_have_options_and_presets_that_are_there() -> None:
    """The table would say that a row cannot run, after an option or a preset was renamed."""
    commands = {command for name in SYSTEMS for row in system(name).rows for command in row.run}
    wrong = []
    for words in map(shlex.split, commands):
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        wrong += [(words, option) for option in options - options_of(words[1:])]
        if "--workload" in words:
            load(words[words.index("--workload") + 1])

    assert [] == wrong


def test_what_is_published_fits_into_a_cell() -> None:
    """A table of many rows would be read sideways, or lose the end of a sentence."""
    assert [] == [row.id for name in SYSTEMS for row in system(name).rows if len(row.published) > CELL_CHARACTERS]


def test_a_system_is_explained_with_its_parts_and_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Its policy would have to be looked for among all policies, and its rows in a table of all systems."""
    assert 0 == main(["explain", "sarathi-serve"])
    printed = capsys.readouterr().out

    assert "Agrawal et al., Sarathi-Serve, OSDI 2024" in printed
    assert "policies chunk-only  Chunks of prompts and decodes in turns" in printed
    assert "S09.b    relaxed SLO: about 1.65x the capacity of vLLM" in printed


def test_a_row_without_commands_names_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence of a removed option leads here: its user would not learn where the numbers went."""
    assert 0 == main(["explain", "distserve"])

    assert "checked by tests/theory/test_distserve_simulator.py" in capsys.readouterr().out


def test_checks_of_rows_are_there() -> None:
    """A row would be proved by a test that is not there."""
    top = Path(__file__).parents[2]
    checks = {row.check for name in SYSTEMS for row in system(name).rows if row.check is not None}

    assert checks
    for check in checks:
        file, _, name = check.partition("::")
        assert f"def {name}" in (top / file).read_text(encoding="utf-8"), check


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('badge = "exact"', "S1: a row needs run and value, or a check, or the reason why it is unavailable"),
        ('badge = "exact"\ncheck = "tests/x.py"\nvalue = "a.x"', "S1: a row needs run and value, or a check"),
        ('badge = "exact"\ncheck = "tests/x.py"\nunavailable = "private data"', "S1: a row needs run and value, or a "),
        ('badge = "exact"\nrun = ["bench run"]\nvalue = "1"\nband = [2, 1]', "S1: the band .* ends before it begins"),
        (
            'badge = "exact"\nrun = ["bench run --out a"]\nvalue = "a.x"\nmissed = true',
            "S1: missed is for a row with a ch",
        ),
        ('badge = "certain"\ncheck = "tests/x.py"', r"tgi.toml': Invalid enum value 'certain'"),
        ('badge = "exact"\ncheck = "tests/x.py"\nbands = [1, 2]', r"contains unknown field `bands` - at `\$.row\[0\]`"),
        ('badge = "exact"\nrun = ["pytest x"]\nvalue = "1"', "S1: 'pytest x' does not begin with bench"),
        ('badge = "exact"\nrun = ["bench run"]\nvalue = "a.x"', "S1: no command has --out a, which its value names"),
        ('badge = "exact"\nrun = ["bench run --out a"]\nvalue = "a.x < 1"', "holds 'a.x < 1'; it may hold OUT.COLUMN"),
    ],
)
def test_a_row_that_is_not_valid_is_named(
    row: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be printed as a result that was never obtained."""
    (tmp_path / "tgi.toml").write_text(f'[[row]]\nid = "S1"\npublished = "1"\nsource = "none"\n{row}\n')
    module = SimpleNamespace(__name__="systems.tgi", __file__=str(tmp_path / "tgi.py"))
    monkeypatch.setattr(registry, "find", lambda *_: module)

    with pytest.raises(UsageError, match=message):
        system("tgi")
