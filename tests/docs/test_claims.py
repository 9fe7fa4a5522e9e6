"""README and guides state no measured figure that docs/claims.json does not list with its command and worst case."""

import shlex
from typing import Any

import pytest

import claims
from harness.cli._commands import COMMANDS


def claim(**changed: Any) -> dict[str, Any]:
    """A claim that holds, but for what is changed."""
    return {
        "id": "speed", "pages": ["README.md"], "text": ["9,000 requests per CPU second"], "values": [9012.3],
        "unit": "requests per CPU second", "command": "bench list", "find": r"(\d+) requests", "take": "each",
        "tolerance": 0.1, "cases": 1, "chosen": "chosen by hand", "worst": "9,012", "minutes": 1,
        "commit": "6ac66aa", "date": "2026-11-22", "machine": "2 cores",
    } | changed  # fmt: skip


def problems_of(page: str, *listed: dict[str, Any], **exceptions: list[str]) -> list[str]:
    """What is wrong with README.md if this is all it says."""
    found: list[str] = claims.problems(
        {"claims": list(listed), "not_measured": {"README.md": exceptions}}, {"README.md": page}
    )
    return found


def test_every_figure_of_the_pages_has_a_claim() -> None:
    """A reader would plan with an outdated figure."""
    assert [] == claims.problems(claims.load(), claims.read_pages())


def test_commands_of_claims_exist() -> None:
    commands = [shlex.split(one["command"]) for one in claims.load()["claims"]]

    assert {words[1] for words in commands if words[0] == "bench"} <= set(COMMANDS)


@pytest.mark.parametrize(
    "figure",
    [
        "38,000 to 53,000 requests per CPU second", "0.8 %", "2.5 and 2.7 points", "142 MB", "3 minutes", "93 of 100",
        "factor of 20", "0.83x", "10,000,000", "198.5", "33 presets", "three minutes", "four of five", "a sixth",
        "take seconds", "0, 0.1, 0.7 %", "5 to 7 CPU seconds",
    ],
)  # fmt: skip
def test_new_figure_on_a_page_is_found(figure: str) -> None:
    """A figure would stand on a page without a decision what renews it."""
    (sentence,) = problems_of(f"# bench\n\nIt is known that {figure} and\nmore.\n")

    assert sentence.startswith(f"README.md:3: '{figure}' has no claim.")
    assert [] == problems_of(f"It is known that {figure} and\nmore.\n", example=[figure])


@pytest.mark.parametrize(
    "text",
    [
        "Run `bench run --slo ttft=0.25` for 5 seeds.",
        "```console\n$ bench run --rate 0.5 # 99 %\n```\n",
        "So:\n\n    bench serve --rate 0.5 # 99 %\n\nand so on.\n",
        "Tried with vllm bench 0.32.0, see [page](docs/0.5.md).",
        "| exit code | meaning |\n|---|---|\n| 130 | interrupted |\n",
    ],
)
def test_code_versions_and_settings_are_no_figures(text: str) -> None:
    assert [] == problems_of(text)


def test_number_alone_in_a_cell_is_a_figure() -> None:
    (sentence,) = problems_of("| noise | pairs |\n|---|---|\n| low | 14 |\n")

    assert sentence.startswith("README.md:3: '14' has no claim.")


def test_page_that_says_something_else_than_was_measured() -> None:
    """A corrected page, or a renewed measurement, would leave the other one behind."""
    page = "It simulates 9,000 requests\nper CPU second."

    assert [] == problems_of(page, claim())
    assert ["speed: the page says 9,000 and 7,000 was measured; correct the page, or measure again."] == problems_of(
        page, claim(values=[7000])
    )
    assert ["speed: its text has 1 numbers and 2 values; correct the page, or measure again."] == problems_of(
        page, claim(values=[9000, 9100])
    )


def test_rounding_hides_half_a_digit() -> None:
    assert [] == claims.disagreements(claim(text=["0.8 %"], values=[0.83], tolerance=None))
    assert [] != claims.disagreements(claim(text=["0.8 %"], values=[0.86], tolerance=None))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"command": "python tests/perf/no_such_script.py"}, "tests/perf/no_such_script.py does not exist"),
        ({"worst": ""}, "worst, unit, pages, text and values must not be empty"),
        ({"cases": 0}, "cases must be positive"),
        ({"chosen": "some"}, "chosen one of"),
        ({"commit": "yesterday"}, "commit must be a commit"),
        ({"text": ["9,500 requests per CPU second"], "values": [9500]}, "does not say '9,500 requests per CPU second'"),
    ],
)
def test_claim_that_cannot_be_renewed(changed: dict[str, Any], message: str) -> None:
    """A claim would stand without what is needed to check it."""
    sentences = problems_of("It simulates 9,000 requests per CPU second.", claim(**changed))

    assert message in sentences[0]


def test_exception_whose_text_is_gone_is_named() -> None:
    """It would cover the next figure of the same text."""
    (sentence,) = problems_of("No figures.", default=["5 %"])

    assert "'5 %' is not there any more" in sentence


def test_values_are_read_from_the_output_of_the_command() -> None:
    output = "a 1,200 requests\nb 900 requests\n"
    found = {take: claims.measured(claim(find=r"([\d,]+) requests", take=take), output) for take in ("each", "range")}

    assert {"each": [1200.0, 900.0], "range": [900.0, 1200.0]} == found
    assert [] == claims.measured(claim(), "nothing")


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One claim instead of the file; what is stored comes back into it."""
    held: dict[str, Any] = {"claims": [claim(), claim(id="long", minutes=30)], "not_measured": {}}
    monkeypatch.setattr(claims, "load", lambda: held)
    monkeypatch.setattr(claims, "store", held.update)
    monkeypatch.setattr(claims, "commit", lambda: "1234567")
    return held


@pytest.mark.parametrize(("measured", "code"), [(9100, 0), (5000, 1)])
def test_renewed_claim_that_the_page_no_longer_says(
    stored: dict[str, Any],
    measured: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page would go on stating what was true once."""
    monkeypatch.setattr(claims, "ran", lambda _command: (0, f"{measured} requests"))

    assert code == claims.renew(None)
    short, long = stored["claims"]
    out = capsys.readouterr().out
    assert ([measured], "1234567") == (short["values"], short["commit"])
    assert "9,012 -> " in out
    assert code == out.count("README.md: the page says 9,000 and 5,000 was measured")
    assert ("6ac66aa", 1) == (long["commit"], out.count("long: not measured, it takes 30 minutes"))


def test_command_that_does_not_give_the_values(stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim whose script prints something else would look renewed."""
    monkeypatch.setattr(claims, "ran", lambda _command: (0, "nothing"))

    assert 1 == claims.renew("speed")
    assert "6ac66aa" == stored["claims"][0]["commit"]
    assert 2 == claims.renew("sped")
