"""The stored JSON Schemas are those of the types that read and write the files."""

import json
import sys
from pathlib import Path

import pytest

from harness.data.codec import encode
from harness.data.run_json import RunInfo, decode
from harness.options import Given, run_spec
from harness.runner.run import execute

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import schemas


@pytest.mark.parametrize("name", schemas.FILES)
def test_the_stored_schema_is_that_of_the_type(name: str) -> None:
    """A program that checks our files by the schema would refuse good ones; `python tools/schemas.py` mends it."""
    stored = (schemas.FOLDER / f"{name}.schema").read_text(encoding="utf-8")

    assert schemas.text(schemas.FILES[name]) == stored


def test_a_run_has_the_keys_of_the_schema_and_is_written_back_as_it_was(tmp_path: Path) -> None:
    """A key that no type has would be missing from the schema; a rewritten file would differ from its original."""
    given = {"workload": "chatbot", "backend": "sim", "requests": "60"}
    execute(run_spec(Given(given)), out=tmp_path / "run")
    text = (tmp_path / "run" / "run.json").read_text(encoding="utf-8")
    known = schemas.schema(RunInfo)["$defs"]["RunInfo"]["properties"]

    assert set(json.loads(text)) <= set(known)
    assert text == json.dumps(encode(decode(json.loads(text))), indent=2) + "\n"
