"""A latency model and the system that it times are one: another model, GPU or number of GPUs is refused."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import UsageError
from harness.registry import make

OTHER = "roofline:model=llama3-70b,tp=8"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--latency", OTHER, "--model", "opt-13b", "--tp", "1"],
         "is for model=llama3-70b, tp=8, but the system has model=opt-13b, tp=1; give --model llama3-70b --tp 8,"),
        (["--latency", OTHER, "--tp", "2"], "is for tp=8, but the system has tp=2; give --tp 8,"),
        (["--latency", "roofline:hardware=h100", "--hardware", "a100-80g"],
         "is for hardware=h100, but the system has hardware=a100-80g;"),
        (["--latency", "roofline:pp=2", "--pp", "1"], "give --pp 2,"),
        (["--latency", "roofline:model=opt-66b", "--model", "opt-175b"],
         "model=opt-66b, but the system has"),
        (["--latency", "abc:distserve,model=opt-66b,tp=4", "--model", "opt-13b"], "is for model=opt-66b,"),
        (["--latency", "fit6"], "is for hardware=h100, but the system has hardware=a100-80g;"),
        (["--latency", "table:yi-34b-tp2", "--model", "yi-34b"], "is for tp=2, but the system has tp=1; give --tp 2,"),
        (["--latency", "mixed"], "is for model=yi-34b, tp=2,"),
        (["--prefill", "1:tp=2", "--decode", "1", "--latency", "roofline:tp=2"],
         "is for tp=2, but the system has tp=1"),
        (["--prefill", "1", "--decode", "1:latency=roofline:tp=4"], "is for tp=4, but the system has tp=1"),
    ],
)  # fmt: skip
def test_a_latency_model_of_another_system_was_valid(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of eight GPUs were counted as one, with the memory of another model, and the run was VALID."""
    assert main(["run", "--backend", "sim", "--requests", "5", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--backend", "sim:latency=roofline:model=llama3-70b,model=opt-13b", "--requests", "5"],
        ["theory", "knee", "--over", f"latency={OTHER}|"],
        ["theory", "slo", "--over", f"latency={OTHER}|"],
        ["theory", "chunking:latency=table:yi-34b-tp2"],
        [
            "place",
            "--gpus",
            "2",
            "--backend",
            "sim",
            "--model",
            "opt-13b",
            "--latency",
            "roofline:model=llama3-8b",
            "--slo",
            "ttft=1,tpot=1",
        ],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_every_command_refuses_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A placement of one model would be found with the steps of another."""
    assert main(command) == 2
    assert ", but the system has " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "system"),
    [
        ({"latency": f"{OTHER},hardware=h100"}, ("llama3-70b", "h100", 8, 1)),
        ({"latency": "roofline:Llama3-70B,pp=2", "hardware": "h200"}, ("Llama3-70B", "h200", 1, 2)),
        ({"latency": "roofline:model=llama3-8b,tp=2", "prefill": "1:tp=2", "decode": "2:tp=2"},
         ("llama3-8b", "a100-80g", 1, 1)),
    ],
)  # fmt: skip
def test_what_is_not_given_comes_from_the_latency_model(
    given: dict[str, object], system: tuple[str, str, int, int]
) -> None:
    """Memory and GPUs are counted for the system that the steps are timed for."""
    sim = make("backends", "sim", **given)

    assert (sim.model, sim.hardware, sim.tp, sim.pp) == system


def test_a_file_of_another_system_is_refused(tmp_path: Path) -> None:
    """A fit of an H100 would time an A100."""
    file, system = tmp_path / "x.toml", {"model": "opt-13b", "hardware": "a100-80g", "tp": 1, "pp": 1}
    file.write_text('latency = "roofline"\n[arguments]\ntp = 2\n')
    with pytest.raises(UsageError, match=r"In '.*x.toml': The latency model 'roofline:tp=2' is for tp=2"):
        make("latency", f"file:{file}", **system)
    file.write_text('latency = "linear"\n[arguments]\nbase_s = 0.01\n[fit]\nhardware = "h100"\n')
    with pytest.raises(UsageError, match="is for hardware=h100"):
        make("latency", f"file:{file}", **system)

    assert 0.01 == make("latency", f"file:{file}", **system | {"hardware": "H100"}).decode_s(1, 10)


def test_one_that_says_the_same_is_taken() -> None:
    """Who repeats the system in the latency model, or leaves it out, is right."""
    system = {"model": "llama3-70b", "hardware": "h100", "tp": 8, "pp": 1}
    full = make("latency", "roofline:model=Llama3-70B,tp=8", **system)

    assert make("latency", "roofline", **system).decode_s(4, 400) == full.decode_s(4, 400)
