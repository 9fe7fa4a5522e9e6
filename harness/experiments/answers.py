"""The answers of commands: JSON files with their kind, each a type of its own; `reports.answers` reports them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from harness import untrusted
from harness.data import codec
from harness.data.codec import Damaged, Document
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.experiments.agents.agents_json import AgentsAnswer
    from harness.experiments.capacity.capacity_json import CapacityAnswer
    from harness.experiments.compare.compare_json import CompareAnswer, TrendAnswer
    from harness.experiments.fit.fit_json import FitAnswer
    from harness.experiments.place.place_json import PlaceAnswer
    from harness.experiments.reproduce import ReproduceAnswer
    from harness.experiments.rescore.slo_json import SloAnswer
    from harness.experiments.sweep.sweep_json import SweepAnswer
    from harness.experiments.theory import TheoryAnswer
    from harness.experiments.validate.answer import ValidateAnswer

Answer: TypeAlias = (
    "SweepAnswer | CapacityAnswer | AgentsAnswer | PlaceAnswer | CompareAnswer | TrendAnswer | FitAnswer | "
    "ValidateAnswer | TheoryAnswer | SloAnswer | ReproduceAnswer"
)
MODULES = {
    "sweep": "sweep.sweep_json",
    "capacity": "capacity.capacity_json",
    "agents": "agents.agents_json",
    "place": "place.place_json",
    "compare": "compare.compare_json",
    "trend": "compare.compare_json",
    "fit": "fit.fit_json",
    "validate": "validate.answer",
    "theory": "theory",
    "slo": "rescore.slo_json",
    "reproduce": "reproduce",
}
"""Where the type of a kind of answers is, below this package."""
SCHEMA = 1
FORMS = ("text", "markdown", "csv", "json")
"""The formats of an answer; csv where its kind is a table."""
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)
"""What the report of a damaged answer ends in."""


def of(path: str | Path) -> Answer | None:
    """The answer in a folder (`sweep.json`, `capacity.json`, ...), or in such a file; None where there is none.

    Of a sweep that was killed or still goes on it is made now, of the runs that have ended. Raises UsageError for one
    that cannot be read, or that a newer bench wrote.
    """
    source = Path(path)
    files = [source / f"{kind}.json" for kind in MODULES] if source.is_dir() else [source]
    file = next((f for f in files if f.is_file() and f.suffix == ".json"), None)
    if file is None:
        return None
    try:
        read = untrusted.read_json(file)
    except (OSError, ValueError) as error:
        if source.is_dir():
            raise UsageError(f"'{file}' cannot be read ({error}).") from None
        return None
    if not isinstance(read, dict) or read.get("kind") not in MODULES:
        return None
    if not isinstance(read.get("schema"), int) or read["schema"] > SCHEMA:
        raise UsageError(
            f"'{file}' has schema {read.get('schema')}, this bench reads up to {SCHEMA}; use a newer bench."
        )
    try:
        if read["kind"] == "sweep" and read.get("state") == "running":
            from harness.experiments.sweep.execute import reported  # heavy

            return reported(file.parent, read)
        return decode(read)
    except (Damaged, *WRONG) as error:
        raise damaged(read, path, error) from None


def type_of(kind: str) -> type[Document]:
    """The type of the answers of a kind, such as CapacityAnswer; it is loaded where one is read."""
    return cast(
        "type[Document]", getattr(import_module(f"{__package__}.{MODULES[kind]}"), f"{kind.capitalize()}Answer")
    )


def decode(read: Answer | Mapping[str, Any]) -> Answer:
    """The answer, of its JSON object. Raises Damaged, with the place of the first value of another kind."""
    return cast("Answer", read if isinstance(read, Document) else codec.decode(type_of(read["kind"]), read))


def kind_of(answer: Answer | Mapping[str, Any]) -> str:
    """The kind of an answer, or of its JSON object."""
    return answer.kind if isinstance(answer, Document) else str(answer["kind"])


def command(answer: Answer | Mapping[str, Any]) -> str:
    """The command that gave an answer."""
    kind = kind_of(answer)
    return "bench compare --trend" if kind == "trend" else f"bench {kind.replace('_', ' ')}"


def damaged(answer: Answer | Mapping[str, Any], path: str | Path, error: Exception) -> UsageError:
    """The error of a report where one of `WRONG` came of an answer."""
    what = f"at '{error}'" if isinstance(error, Damaged) else f"{type(error).__name__}: {ascii(str(error)[:200])[1:-1]}"
    return UsageError(
        f"'{path}' holds an answer of {command(answer)} that is damaged or was changed by hand ({what}); make it again."
    )
