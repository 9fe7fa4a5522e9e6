"""`bench list` and `bench explain` know everything that can be named."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import validity
from harness.cli import main
from harness.cli.list import OPTION, glossary, names


@pytest.mark.parametrize("kind", OPTION)
def test_everything_that_is_listed_is_explained(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`bench list` would show a name that no command knows."""
    assert main(["list", kind]) == 0
    listed = capsys.readouterr().out

    for name in names(kind):
        assert f"  {name} " in listed
        assert main(["explain", f"{kind}.{name}"]) == 0
        assert capsys.readouterr().out.startswith(name)


TERMS = """ttft tpot goodput capacity lateness idc SLO goodput_rps valid overloaded inconclusive sending ks drain rate
rejected timeout preemptions p99 within fail-under dispersion window interrupted context
autocorrelation cv session turn follow-up think-time prefix closed-loop class deadline trace
interval warm-up mser5 common-random-numbers pair gate mde min-effect must-detect regressed improved equivalent
unresolved curtailment jackknife baseline trend tolerance budget conditions binding slo-scale token-goodput
profile knee lane tier cache_hit"""


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
    terms, aliases, warnings = glossary()

    assert set(aliases.values()) <= set(terms)
    assert not set(aliases) & set(terms)
    assert not set(warnings) & set(terms)


def _constants(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Names of a module that are set to a constant, several in one line among them."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            for name, constant in zip(target.elts, value.elts, strict=True) if several else [(target, value)]:
                if isinstance(name, ast.Name) and isinstance(constant, ast.Constant):
                    yield name.id, constant.value


def test_every_warning_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict 'valid, with 1 warning (shared-reads)' would lead nowhere."""
    constants: dict[str, str] = {}
    given = []
    for path in Path(inspect.getfile(validity)).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants |= {name: value for name, value in _constants(tree) if isinstance(value, str)}
        for call in ast.walk(tree):
            place = {"Rule": 1, "RunWarning": 0}.get(getattr(getattr(call, "func", None), "id", ""))
            if isinstance(call, ast.Call) and place is not None:
                given.append(call.args[place])
    texts = [code.value if isinstance(code, ast.Constant) else constants.get(getattr(code, "id", "")) for code in given]
    codes = {text for text in texts if isinstance(text, str)}

    assert len(codes) > 50
    for code in codes:
        assert main(["explain", str(code)]) == 0, code


def test_metrics_are_explained_without_fields_of_their_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """'assume Assume, default nothing' tells a user nothing."""
    for name in names("metrics"):
        assert main(["explain", f"metrics.{name}"]) == 0
        shown = capsys.readouterr().out
        assert "Assume" not in shown
        assert "arguments" not in shown


def test_arguments_are_explained_with_unit_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    """A user would have to read the source to know what `ttft` of the null backend means."""
    assert main(["explain", "null"]) == 0

    assert "ttft_s       number, seconds; 250ms, 60s, 5min, default 0.0" in capsys.readouterr().out


def test_the_usual_columns_of_a_plain_table_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """A user would have to try which names of columns are recognised."""
    assert main(["explain", "readers.csv"]) == 0

    shown = " ".join(capsys.readouterr().out.split())
    assert "at_ms at_ms, timestamp_ms, arrival_ms at_us" in shown
    assert "session session, session_id, conversation_id turn" in shown


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


def test_equal_arrivals_of_classes_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty tenants would fill five lines with 'tenant-01=poisson'."""
    main(["explain", "multi-tenant"])
    main(["explain", "burstgpt"])
    text = capsys.readouterr().out

    assert "Classes: 20; arrivals: poisson (each class its own)" in text
    assert "Classes: 2; arrivals: burstgpt (each class its own)" in text
    assert "e+0" not in text


def test_a_kind_is_explained_by_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    """`bench explain arrivals` would be met with 'Did you mean 'arxiv'?'."""
    assert main(["explain", "arrivals"]) == 0
    text = capsys.readouterr().out

    assert text.startswith("arrivals (--arrivals NAME)")
    assert all(f"  {name} " in text for name in names("arrivals"))
