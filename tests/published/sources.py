"""The public sources of measurements by name, and where their files are, which are no part of the project."""

from pathlib import Path

from harness.errors import UsageError, no_such
from harness.experiments.validate.answer import Validation
from published import apex_h100, distserve_66b_chat_ae, distserve_a100, llmservingsim

SOURCES = {
    "apex-h100": apex_h100,
    "distserve-66b-chat-ae": distserve_66b_chat_ae,
    "distserve-a100": distserve_a100,
    "llmservingsim": llmservingsim,
}
"""Modules with `validate`, the comparison, and `convert`, which writes its tables for `bench validate --against`."""


def compare(name: str, data: Path) -> Validation:
    """The simulator beside the measurements of a source. Raises UsageError for an unknown one, or without its files."""
    if name not in SOURCES:
        raise no_such("source of measurements", name, SOURCES)
    return SOURCES[name].validate(data)


def data_folder(given: str | None = None) -> Path | None:
    """The folder `given`, else `shared/data` above the working folder or this project; None where there is none."""
    if given is not None:
        if not Path(given).is_dir():
            raise UsageError(f"--data names '{given}', which is no folder; name the folder of measurements.")
        return Path(given)
    parents = (*(Path.cwd() / "x").parents, *Path(__file__).resolve().parents)
    return next((parent / "shared" / "data" for parent in parents if (parent / "shared" / "data").is_dir()), None)
