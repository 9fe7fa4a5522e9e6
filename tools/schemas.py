"""Write the JSON Schema of every file that bench writes to build/schemas (`make schemas`), one row of `FILES` each."""

import json
from pathlib import Path
from typing import Any

import msgspec

from harness.data.run_json import RunInfo
from harness.experiments import answers
from harness.experiments.compare.history import ACCEPTED, Accepted

FOLDER = Path(__file__).resolve().parents[1] / "build" / "schemas"
FILES: dict[str, type[msgspec.Struct]] = {
    "run.json": RunInfo,
    ACCEPTED: Accepted,
    **{
        f"{kind}.json": answers.type_of(kind) for kind in answers.MODULES if kind != "policy"
    },  # it is of the type of theory
}


def schema(of: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a type, without what is only kept in memory."""
    found = msgspec.json.schema(of, schema_hook=lambda _: {"description": "any JSON value"})
    for part in found["$defs"].values():
        part.get("properties", {}).pop(" as read", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def text(of: type[msgspec.Struct]) -> str:
    """The file of a schema."""
    return json.dumps(schema(of), indent=2) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, of in FILES.items():
        (FOLDER / f"{name}.schema").write_text(text(of), encoding="utf-8")
