"""The programs of docs/examples do what their pages say."""

import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_the_guide_shows_the_files_of_its_example() -> None:
    """A copy of the file from the guide would be refused."""
    guide = (EXAMPLES.parent / "guide" / "validate.md").read_text(encoding="utf-8")

    assert f"```toml\n{(EXAMPLES / 'measured' / 'server.toml').read_text(encoding='utf-8')}```" in guide
    for name in ("requests.csv", "runs.csv"):
        lines = (EXAMPLES / "measured" / name).read_text(encoding="utf-8").splitlines()
        assert "\n".join(lines[:2]) in guide


def test_the_notebook_runs(tmp_path: Path) -> None:
    """A newcomer's first notebook would end in a traceback."""
    notebook = nbformat.read(EXAMPLES / "goodput.ipynb", as_version=4)
    (searched,) = (cell for cell in notebook.cells if "harness.capacity(" in cell.source)
    stored = str(searched.outputs)
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in shown for kind in output.get("data", {})}

    assert [] == [output for output in shown if output.output_type == "error"]
    assert {1} >= {len(output.text.splitlines()) for output in shown if output.output_type == "stream"}  # the last note
    assert "resolved" in stored and "unresolved" not in str(searched.outputs), "the capacity cell shows an answer"
    assert {"text/markdown", "text/html", "application/vnd.plotly.v1+json"} <= kinds


def test_every_page_of_the_gallery_is_made_by_its_commands() -> None:
    """The index would lead to a page that is not there. (The commands themselves are run by `make gallery`.)"""
    pages = tomllib.loads((EXAMPLES / "gallery.toml").read_text(encoding="utf-8"))["page"]
    made = {page["file"]: page["commands"] for page in pages}

    assert made
    assert [] == [f for f, commands in made.items() if f.removesuffix("/report.html").partition(".")[0] not in commands]


@pytest.mark.parametrize(
    ("name", "most", "guide"),
    [("even_context", 60, "router"), ("backlog", 60, "clusters"), ("shortest_prompt", 45, None)],
)
def test_an_example_is_short_and_shown(name: str, most: int, guide: str | None) -> None:
    """A plug-in is one small file; code in a guide that differs from what runs is a lie."""
    code = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    text = (EXAMPLES.parent / "guide" / f"{guide}.md").read_text(encoding="utf-8") if guide else "```python\n```"
    shown = [line for line in text.split("```python\n")[1].split("```")[0].splitlines() if line.strip()]

    assert len(code.splitlines()) <= most
    assert not [line for line in shown if "def " not in line and line not in code]
    assert guide != "router" or f"{len(code.splitlines())} lines" in text
