"""The JSON Schema of a file has the keys that bench writes, and an answer is written back as it was read."""

import json
from pathlib import Path

import pytest

import schemas
from harness.cli import main
from harness.data.codec import encode
from harness.data.run_json import RunInfo, decode
from harness.experiments import answers
from harness.options import Given, run_spec
from harness.runner.run import execute

TRAFFIC = "--workload chatbot --backend sim --slo ttft=0.25,tpot=0.1 --requests 40 --workers 1"
COMMANDS = {
    "sweep": f"sweep {TRAFFIC} --rate 1,40 --seeds 2 --fail-under 0.9",
    "capacity": f"capacity {TRAFFIC}".replace("--requests 40", "--max-requests 4000"),
    "agents": "agents --trace chats.parquet --backend sim --slo p90:tpot=0.02 --horizon 5min --workers 1",
    "theory": "theory chunking",
    "reproduce": "reproduce S22.a",
    "slo": "slo run --slo tpot=0.1 --by prompt --scale 0.5:2 --tokens --profile vllm",
    "compare": "compare run run",
    "trend": "compare --trend series",
    "fit": "fit --steps run",
    "validate": "validate --against run --backend sim",
    "place": "place --gpus 2 --hardware h100 --algorithm low --slo ttft=0.2,tpot=0.1 --max-requests 5000 --rate 3",
}
"""For each kind a command that leaves its answer in a folder, or only prints it."""
PRINTED = ("compare", "trend", "fit", "theory", "slo", "validate")


@pytest.mark.parametrize("kind", [kind for kind in answers.MODULES if f"{kind}.json" in schemas.FILES])
def test_an_answer_has_the_keys_of_the_schema_and_is_written_back_as_it_was(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that is printed as JSON would differ from the file that it was read from."""
    monkeypatch.chdir(tmp_path)
    if kind in ("compare", "trend", "fit", "validate", "slo"):
        folder = "series/20260105-abc" if kind == "trend" else "run"
        main(["run", *TRAFFIC.split()[:-2], "--quiet", "--no-html", "--out", folder])
        capsys.readouterr()
    if kind == "agents":
        main(["trace", "generate", "chatbot", "--sessions", "fixed:turns=9,think=1s", "--requests", "90",
              "-o", "chats.parquet"])  # fmt: skip
        capsys.readouterr()
    page = [] if kind == "reproduce" else ["--no-html"]
    stores = [] if kind in PRINTED else ["--quiet", *page, "--out", "made"]
    main([*COMMANDS[kind].split(), "--format", "json", *stores])
    (tmp_path / "printed.json").write_text(capsys.readouterr().out, encoding="utf-8")
    known = schemas.schema(answers.type_of(kind))["$defs"][answers.type_of(kind).__name__]["properties"]

    for file in (tmp_path / "printed.json", *tmp_path.glob(f"made/{kind}.json")):
        text = file.read_text(encoding="utf-8")
        read = answers.decode(json.loads(text))
        assert isinstance(read, answers.type_of(kind))
        assert text == json.dumps(encode(read), indent=2) + "\n"
        assert set(encode(read)) <= set(known)


def test_a_run_has_the_keys_of_the_schema_and_is_written_back_as_it_was(tmp_path: Path) -> None:
    """A key that no type has would be missing from the schema; a rewritten file would differ from its original."""
    given = {"workload": "chatbot", "backend": "sim", "requests": "60"}
    execute(run_spec(Given(given)), out=tmp_path / "run")
    text = (tmp_path / "run" / "run.json").read_text(encoding="utf-8")
    known = schemas.schema(RunInfo)["$defs"]["RunInfo"]["properties"]

    assert set(json.loads(text)) <= set(known)
    assert text == json.dumps(encode(decode(json.loads(text))), indent=2) + "\n"
