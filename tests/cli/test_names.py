"""`bench list` and `bench explain` know everything that can be named."""

from __future__ import annotations

import pytest

from harness.cli import _names, main


@pytest.mark.parametrize("kind", _names.kinds())
def test_everything_that_is_listed_is_explained(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A user would read a name in the list and then be told that it does not exist."""
    assert main(["list", kind]) == 0
    listed = capsys.readouterr().out

    for name in _names.names(kind):
        assert f"  {name} " in listed
        assert main(["explain", f"{kind}.{name}"]) == 0
        assert capsys.readouterr().out.startswith(name)


TERMS = """ttft tpot goodput capacity lateness idc SLO goodput_rps valid overloaded inconclusive sending ks drain rate
rejected timeout preemptions p99 within fail-under dispersion window interrupted context"""


@pytest.mark.parametrize("term", TERMS.split())
def test_words_of_the_result_are_explained(term: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A newcomer could not read the summary."""
    assert main(["explain", term]) == 0
    assert "(term)" in capsys.readouterr().out


def test_a_list_that_is_read_by_a_program_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench list | grep` would miss what stands after the 96th column."""
    main(["list"])
    lines = capsys.readouterr().out.splitlines()

    assert not any(line.endswith("...") for line in lines)
    assert max(map(len, lines)) > 100


def test_other_words_lead_to_terms() -> None:
    """`bench explain percentile` would end in a traceback."""
    terms, aliases = _names.glossary()

    assert set(aliases.values()) <= set(terms)
    assert not set(aliases) & set(terms)


def test_metrics_are_explained_without_fields_of_their_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """'assume Assume, default nothing' tells a user nothing."""
    for name in _names.names("metrics"):
        assert main(["explain", f"metrics.{name}"]) == 0
        shown = capsys.readouterr().out
        assert "Assume" not in shown
        assert "arguments" not in shown


def test_arguments_are_explained_with_unit_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    """A user would have to read the source to know what `ttft` of the null backend means."""
    assert main(["explain", "null"]) == 0

    assert "ttft_s       number, seconds; 250ms, 60s, 5min, default 0.0" in capsys.readouterr().out


def test_quantities_have_units_and_choices_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU would have 312000000000000.0 of something, and an argument the type 'Preparation'."""
    main(["explain", "a100-80g"])
    gpu = capsys.readouterr().out
    main(["explain", "lengths.sharegpt"])
    lengths = capsys.readouterr().out

    assert "312 TFLOP/s" in gpu
    assert "2039 GB/s" in gpu
    assert "79.15 GiB" in gpu
    assert "one of distserve, first-turn, multi-turn-8k, default distserve" in lengths


def test_every_option_of_run_is_shown_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    """A new option would be missing from the help, or end among the leftovers."""
    from harness.cli import run

    main(["run", "--help"])
    shown = capsys.readouterr().out
    parameters = {str(p.name).replace("_", "-") for p in run.command.params}

    assert parameters == {name for names in run._SECTIONS.values() for name in names}
    assert all(p.opts[0] in shown for p in run.command.params)
    assert ["-h, --help"] == [line.split("  ")[1] for line in shown.split("Other options:")[1].splitlines()[1:2]]
