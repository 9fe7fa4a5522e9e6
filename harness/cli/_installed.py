"""Whether the four packages that run are those of bench: their names are common words, and other projects have them."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from harness.errors import UsageError

DISTRIBUTION = "goodput-bench"
"""Its name where packages are installed from; `bench` is another project there."""

HOME = Path(__file__).resolve().parents[2]
FIRST_LINES = {
    "harness": '"""Trace-driven benchmarks of LLM serving',
    "workloads": '"""Streams of requests',
    "backends": '"""Turn a request into timed tokens',
    "reports": '"""What people read',
}
"""How `__init__.py` of each package begins."""


def check() -> None:
    """Raise UsageError where another package stands in the place of one of bench. Costs less than a millisecond."""
    for name, begins in FIRST_LINES.items():
        spec = find_spec(name)
        file = HOME / name / "__init__.py"
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != file:
            raise _refused(name, "is missing" if spec is None or spec.origin is None else f"comes from '{spec.origin}'")
        with file.open(encoding="utf-8", errors="replace") as text:
            if not text.readline().startswith(begins):
                owners = [owner for owner, package in others() if package == name]
                raise _refused(name, f"in '{HOME}' was overwritten by {' and '.join(owners) or 'another project'}")


def others() -> Iterator[tuple[str, str]]:
    """Other distributions, by name and version, that have files in a package of bench, with the package."""
    from importlib import metadata  # heavy

    for distribution in metadata.distributions():
        if distribution.name != DISTRIBUTION:
            for name in sorted({file.parts[0] for file in distribution.files or ()} & FIRST_LINES.keys()):
                yield f"{distribution.name} {distribution.version}", name


def _refused(name: str, what: str) -> UsageError:
    return UsageError(
        f"The package '{name}' of bench {what}; install bench in an environment of its own: 'uv tool install "
        f"{DISTRIBUTION}', or reinstall it in a new virtual environment."
    )
