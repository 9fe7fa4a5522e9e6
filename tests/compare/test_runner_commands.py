"""The commands of a comparison: what is added to them, what cannot be started, what they print."""

import sys
from pathlib import Path

from harness.experiments.compare.pair_log import of_spec, parse, shown
from harness.ipc import python
from harness.options import Given, run_spec

OWN = ["--seed=4", "--out=o/base", "--warmup=mser5", "--quiet", "--no-html"]


def test_a_bench_run_gets_a_seed_and_a_folder():
    """Every pair sends the same requests, and every run overwrites the one before."""
    command = parse("bench run --backend sim --rate 2")

    assert ["run", "--backend", "sim", "--rate", "2", *OWN] == command.at(4, Path("o/base"))[-10:]
    assert command.ours
    assert command.seeded


def test_what_a_bench_run_was_given_stays():
    """A requested warm-up cut would be replaced by another one."""
    words = parse("bench run --warmup none --quiet --config x.toml").at(4, Path("o"))
    file = parse("bench run --config x.toml").at(4, Path("o"))

    assert ["run", "--warmup", "none", "--quiet", "--config", "x.toml", "--seed=4", "--out=o", "--no-html"] == words[
        -9:
    ]
    assert not any(word.startswith("--warmup") for word in file)


def test_a_search_gets_a_folder_and_keeps_its_seeds():
    """A search is given one seed, which it does not know, or leaves nothing to compare."""
    words = parse("bench capacity --backend sim --seeds 8").at(4, Path("o"))

    assert ["capacity", "--backend", "sim", "--seeds", "8", "--out=o"] == words[-6:]


def test_places_in_any_command_are_filled_in():
    """Another tool gets its seed nowhere."""
    command = parse("python3 load.py --seed={seed} -o {out}.json 'two words'")

    assert ["python3", "load.py", "--seed=9", "-o", "a/head.json", "two words"] == command.at(9, Path("a/head"))
    assert not command.ours


def test_variables_before_a_command_are_its_environment():
    """The choice of a GPU in front of a command is taken for a program."""
    command = parse("CUDA_VISIBLE_DEVICES=1 X='a b' python3 a.py {seed}")

    assert {"CUDA_VISIBLE_DEVICES": "1", "X": "a b"} == dict(command.variables)
    assert "python3" == command.words[0]


def test_a_bench_that_is_not_on_the_path_is_this_one(monkeypatch):
    """The commands of the documentation fail where the environment is not activated."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent / "nowhere"))

    assert (*python("harness.cli"), "run") == parse("bench run --backend sim").words[:5]


def test_a_spec_becomes_the_bench_run_of_its_options():
    """Runs of a comparison differ from those of bench run with the same options."""
    given = {"workload": "chatbot", "rate": "2", "backend": "openai:url=http://h/v1", "header": "A: 1\nB: 2"}
    words = of_spec(run_spec(Given(given)), "x").at(4, Path("o/base"))

    assert python("harness.cli", "run") == words[:5]
    assert {"--workload=chatbot", "--rate=2.0", "--header=A: 1", "--header=B: 2", *OWN} <= set(words)
    assert len(set(words)) == len(words)


def test_keys_are_not_written_down():
    """The key of a paid server stands in a file that is uploaded with every night."""
    command = parse("HF_TOKEN=abc123 bench run --header 'X-Mine: abc123 abc123' --lengths fixed:output_tokens=4")

    assert "abc123" not in command.text
    assert "abc123" in " ".join(command.words)
    assert "output_tokens=4" in command.text
    assert "Authorization: [hidden] x" == shown("Authorization: Bearer s3cret x")
    assert "--header=X: [hidden]" == shown("--header=X: s3cret")
    assert "api_key=[hidden] x" == shown("api_key=s3cret x")
    assert "openai:key_env=NAME" == shown("openai:key_env=NAME")


def test_another_bench_gets_no_option_that_it_may_not_know(tmp_path):
    """A comparison with an earlier version, in an environment of its own, would end with wrong usage."""
    other = tmp_path / "bench"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    shared = tmp_path / "probe.json"
    theirs, ours = (parse(f"{words} run --backend null") for words in (other, f"{sys.executable} -m harness"))

    assert f"--probed={shared}" not in theirs.at(1, tmp_path, shared)
    assert f"--probed={shared}" in ours.at(1, tmp_path, shared)
