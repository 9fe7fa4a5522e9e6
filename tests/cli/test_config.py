"""Options from the command line, TOML files and run.json become one spec."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from harness.cli import main
from harness.configs import read
from harness.errors import UsageError
from harness.options import GROUPS, OPTIONS, Given, RunSpec, run_spec
from harness.runner.plan import plan


def spec(file: dict[str, object] | None = None, **options: object) -> RunSpec:
    given = Given({name.replace("_", "-"): value for name, value in options.items()})
    return run_spec(given, None if file is None else Given(file, "f.toml"))


def test_defaults_are_the_main_job() -> None:
    """`bench run` alone would not do what the README says."""
    assert ("chatbot", "engine", 0, 0.9, None) == (
        spec().workload, spec().backend, spec().seed, spec().goal, spec().drain,
    )  # fmt: skip


def test_command_line_wins_over_the_file() -> None:
    """A rate given by hand would be ignored."""
    found = spec({"rate": 2, "duration": "5min", "backend": "sim:policy=orca,tp=2"}, rate="4", policy="sarathi")

    assert (4.0, 300.0) == (found.rate, found.duration)
    assert ("sim:tp=2", {"policy": "sarathi"}) == (found.backend, found.parts())


def test_another_backend_drops_the_parts_of_the_old_one() -> None:
    """A file for the simulator could not be tried on the engine."""
    found = spec({"backend": "sim", "hardware": "h100", "tp": 2}, backend="engine")

    assert {} == found.parts()


def test_backend_of_the_command_line_wins_over_parts_of_the_file() -> None:
    """A policy given by hand would be an error instead of winning."""
    found = spec({"backend": "sim", "policy": "orca", "tp": 2}, backend="sim:policy=sarathi")

    assert ("sim:policy=sarathi", {"tp": 2}) == (found.backend, found.parts())


def test_trace_takes_the_place_of_the_workload_of_the_file() -> None:
    """A file written by `bench init` could not be used for a trace."""
    found = spec({"workload": "chatbot", "rate": 2, "requests": 5}, trace="t.csv")

    assert ("t.csv", None, None, 5) == (found.trace, found.workload, found.rate, found.requests)


def test_options_of_a_spec_give_it_again() -> None:
    """A stored run could not be repeated."""
    found = spec(backend="sim", rate="0.1", slo="ttft=0.25", goal="95%", tp="2", drain="1min", seed="7")

    assert run_spec(Given(json.loads(json.dumps(found.options())), "run.json")) == found


def test_part_given_twice_is_an_error() -> None:
    """One of two policies would be taken without a word."""
    with pytest.raises(UsageError, match=r"^policy is given twice: in --backend 'sim:policy=orca' and by"):
        spec(backend="sim:policy=orca", policy="sarathi")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rat = 3", "No option 'rat' (in 'F'). Did you mean 'rate'?"),
        ("url = 'http://h'", "No option 'url' (in 'F'): give the server's URL as --backend http://HOST:PORT."),
        ("rate = true", "rate in 'F' must be a number of requests per second above 0, got 'True'."),
        ("rate = [1]", "rate in 'F' must be one value"),
        ("[run]\nrate = 3", "run in 'F' must be one value"),
        ("slo = 3", "slo in 'F' must be a text that is not empty, got 3."),
        ("rate =", "'F' cannot be read: it is not TOML"),
        ("requests = 2.5", "requests in 'F' must be a whole number from 1 on, got '2.5'."),
        ("duration = '5 parsecs'", "duration in 'F' must be a duration such as"),
    ],
)
def test_wrong_file_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    """A typing error in a file would be ignored, or answered by a traceback."""
    path = tmp_path / "f.toml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(UsageError) as error:
        run_spec(Given({}), read(str(path)).given)

    assert str(error.value).replace(str(path), "F").startswith(message)
    assert "\n" not in str(error.value)


def test_headers_and_fields_reach_the_backend() -> None:
    """A key for a gateway, given by hand, would be left out."""
    found = spec(backend="openai:url=http://h/v1", header="X-A: b", extra_body='{"a": 1}')

    assert {"header": "X-A: b", "extra_body": '{"a": 1}'} == found.parts()


@pytest.mark.parametrize(("given", "expected"), [("off", 0.0), ("0", 0.0), ("3s", 3.0)])
def test_the_time_of_calibration_is_an_option(given: str, expected: float) -> None:
    """'off' would be refused, or would measure for ever."""
    assert expected == spec(calibrate=given).calibrate


def test_a_hidden_secret_must_be_given_again() -> None:
    """A run would be repeated with the word [hidden] as its key."""
    stored: dict[str, object] = {"backend": "openai:url=http://h/v1", "header": "Authorization: [hidden]"}

    with pytest.raises(UsageError, match="a secret in --header, which was not stored; give --header again"):
        spec(stored)
    assert "Authorization: mine" == spec(stored, header="Authorization: mine").header


def test_an_address_of_the_environment_is_kept_in_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would be repeated against whatever server the environment names on that day."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    requested = spec(backend="openai:model=m", lengths="fixed:prompt=5,output=5", requests="3")
    kept = plan(requested).spec

    assert "openai:model=m,url=http://127.0.0.1:9/v1" == kept.backend
    assert 600.0 == kept.drain


def test_every_field_of_a_run_is_an_option_with_heading_metavar_check_and_help() -> None:
    """An option would have no help, or take any value."""
    assert [field.name.replace("_", "-") for field in fields(RunSpec)] == list(OPTIONS)
    for name, option in OPTIONS.items():
        assert option.group in GROUPS, name
        assert option.metavar == option.metavar.upper() and option.help.endswith("."), name
        with pytest.raises(UsageError, match=rf"^{name} in 'f\.toml' must be "):
            option.check([], f"{name} in 'f.toml'")


def test_the_options_of_run_are_those_of_the_table_and_the_shared_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """An option would work in a file and not on the command line, or the other way round."""
    from harness.cli import run

    main(["run", "--help-all"])
    shown = capsys.readouterr().out
    blocks = {block.partition(":\n")[0].strip(): block for block in shown.split("\n\n")}
    taken = {param.opts[0].removeprefix("--") for param in run.command.params}

    assert taken - {*OPTIONS} == {
        "config",
        "out",
        "force",
        "format",
        "quiet",
        "no-html",
        "metrics-port",
        "probed",
        "url",
        "wait",
        "help-all",
    }
    assert {*OPTIONS} <= taken
    assert list(GROUPS) == [heading for heading in blocks if heading in GROUPS]
    for name, option in OPTIONS.items():
        assert f"--{name} {option.metavar} " in blocks[option.group]
    assert all(
        f"--{name}" in blocks["Output"] for name in ("out", "force", "format", "quiet", "no-html", "metrics-port")
    )


def test_a_wrong_value_gets_one_sentence_wherever_it_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line would refuse what a file allows."""
    file = tmp_path / "f.toml"
    file.write_text('goal = "90"', encoding="utf-8")
    wanted = "must be a share above 0 and up to 1, such as 0.9 or 90%, got '90'."

    assert 2 == main(["run", "--goal", "90"])
    assert f"bench: --goal {wanted}\n" == capsys.readouterr().err
    assert 2 == main(["run", "--config", str(file)])
    assert f"bench: goal in '{file}' {wanted}\n" == capsys.readouterr().err


def test_keys_of_the_template_are_options() -> None:
    """`bench init` would write a file that `bench run` refuses as soon as a line of it is used."""
    template = (Path(__file__).parents[2] / "harness" / "cli" / "init.toml").read_text(encoding="utf-8")
    lines = [line.removeprefix("# ").partition("#")[0] for line in template.splitlines()]
    keys = [next(iter(tomllib.loads(line))) for line in lines if " = " in line and not line.startswith("Keys")]

    assert len(keys) > 15
    assert {*keys} <= {*OPTIONS}


def test_arguments_of_a_backend_stay_beside_new_ones() -> None:
    """A repeated run with another rule of admission would have lost its memory mode without a word."""
    file = {"backend": "sim:kv=[paged:blocks=80,watermark=0],preempt=swap", "policy": "orca"}

    assert (
        "sim:preempt=recompute,kv=[paged:blocks=80,watermark=0]" == spec(file, backend="sim:preempt=recompute").backend
    )
    assert "engine" == spec(file, backend="engine").backend


def test_a_server_gets_no_argument_of_another() -> None:
    """A key would be sent to another host."""
    file = {"backend": "openai:url=http://a:1,key_env=SECRET"}

    assert "openai:url=http://b:2" == spec(file, backend="http://b:2").backend
