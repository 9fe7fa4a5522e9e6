"""Every published system says what it is and where it is published, and its rows can be read."""

from pathlib import Path

import pytest

from harness import registry
from harness.cli import main
from harness.experiments.reproduce import system
from reports.answers.reproduce import CELL_CHARACTERS

SYSTEMS = registry.names("systems")


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
    assert "S09.a" in ids


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
    assert [] == [check for check in checks if not (top / check).exists()]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('badge = "exact"', "S1: a row needs run and value, or a check"),
        ('badge = "exact"\ncheck = "tests/x.py"\nvalue = "a.x"', "S1: a row with a check has no run, value and band"),
        ('badge = "exact"\nrun = ["bench run"]\nvalue = "1"\nband = [2, 1]', "S1: the band .* ends before it begins"),
        ('badge = "certain"\ncheck = "tests/x.py"', r"tgi.toml: Invalid enum value 'certain' - at `\$.row\[0\].badge`"),
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
    folder = registry.folder
    monkeypatch.setattr(
        registry, "folder", lambda package: tmp_path if package == registry.SYSTEMS else folder(package)
    )
    monkeypatch.setattr(registry, "find", lambda *_: registry)

    with pytest.raises(ValueError, match=message):
        system("tgi")
