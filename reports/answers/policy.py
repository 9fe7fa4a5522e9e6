"""The report of `bench policy`: policies on the engine and on the simulator, side by side."""

from dataclasses import replace
from pathlib import Path

from harness.experiments.theory.tables import TheoryAnswer
from reports.answers import theory
from reports.answers.theory import rows
from reports.document import Document

__all__ = ["document", "rows"]


def document(info: TheoryAnswer, path: Path | None = None) -> Document:
    """The tables of the comparison."""
    return replace(
        theory.document(info, path), title="Policies on the engine and the simulator", mark="MEASURED AND SIMULATED"
    )
