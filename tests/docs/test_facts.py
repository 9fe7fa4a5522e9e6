"""The net under a change of structure notices what is gone from an answer."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

import facts


def _answers(folder: Path, *, share: float = 0.9, wall_s: float = 1.0, text: str = "met by 90.0% in 12.5 ms") -> Path:
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"share": share, "wall_s": wall_s}), encoding="utf-8")
    (folder / "text.txt").write_text(text, encoding="utf-8")
    parquet.write_table(pa.table({"at_s": [0.5, share]}), folder / "requests.parquet")
    return folder


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({"wall_s": 3.0, "text": "12.5 ms were enough for 90.0%"}, []),
        ({"share": 0.8}, [".share = 0.9", "at_s: double"]),
        ({"text": "met by 90% in 12.5 ms"}, ["90.0%"]),
        ({"text": "met by 90.0% in 12.5 s"}, ["12.5 ms"]),
    ],
)
def test_a_lost_fact_is_named(tmp_path: Path, changes: dict[str, object], gone: list[str]) -> None:
    """A value, a column or a number with its unit that is gone is named; times of day and wording are free."""
    old, again = _answers(tmp_path / "old"), _answers(tmp_path / "again", wall_s=2.0)
    written = io.StringIO()

    lost = facts.compare(old, again, _answers(tmp_path / "new", **changes), written)

    assert len(gone) == lost
    assert all(f"gone: {fact}" in written.getvalue() for fact in gone)


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    """An answer that is no longer written at all is the easiest to overlook."""
    old, again, new = (_answers(tmp_path / name) for name in ("old", "again", "new"))
    (new / "run.json").unlink()
    written = io.StringIO()

    assert facts.compare(old, again, new, written) == 2
    assert "run.json: the file is gone" in written.getvalue()
