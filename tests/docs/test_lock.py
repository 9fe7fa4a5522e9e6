"""The locked versions: all that pyproject.toml asks for, within its bounds, each with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).resolve().parents[2]
LOCKS = sorted((TOP / ".ci").glob("*.lock"))
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))
DIRECT = [
    *PROJECT["project"]["dependencies"],
    *(r for extra in PROJECT["project"]["optional-dependencies"].values() for r in extra),
    *PROJECT["dependency-groups"]["dev"],
]
ENVIRONMENTS = tomllib.loads((TOP / "tests" / "real" / "environments.toml").read_text(encoding="utf-8"))


def locked(lock: Path) -> dict[str, list[tuple[Requirement, str]]]:
    """Name -> the requirements of that name (one for each marker) with the lines that belong to it."""
    found: dict[str, list[tuple[Requirement, str]]] = {}
    for entry in re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip()):
        requirement = Requirement(entry.split("\\\n")[0].strip())
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, entry))
    return found


@pytest.mark.parametrize("text", DIRECT)
def test_every_direct_dependency_is_locked_within_its_bounds(text: str) -> None:
    wanted = Requirement(text)
    entries = locked(TOP / ".ci" / "requirements.lock")[canonicalize_name(wanted.name)]

    for requirement, _ in entries:
        (pin,) = requirement.specifier
        assert wanted.specifier.contains(pin.version)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_locked_version_is_one_with_hashes(lock: Path) -> None:
    """pip and uv refuse a file in which one line lacks a hash, and a version without == is none."""
    entries = [entry for group in locked(lock).values() for entry in group]

    assert len(entries) >= len(PROJECT["build-system"]["requires"])
    for requirement, entry in entries:
        assert [pin.operator for pin in requirement.specifier] == ["=="], entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry


def test_users_are_given_the_tested_versions_of_what_the_core_needs() -> None:
    """The demo would run other versions than the tests, and would install the tools of the tests."""
    tested, core = (locked(TOP / ".ci" / name) for name in ("requirements.lock", "core.lock"))

    assert {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]} <= set(core)
    assert {"pytest", "mypy", "ray", "playwright"}.isdisjoint(core)
    assert [] == [
        r for name in core for r, _ in core[name] if r.specifier not in [t.specifier for t, _ in tested[name]]
    ]


def test_what_installs_and_builds_is_locked() -> None:
    installer = locked(TOP / ".ci" / "installer.lock")

    for text in ["uv", "editables", *PROJECT["build-system"]["requires"]]:
        wanted = Requirement(text)
        ((requirement, _),) = installer[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(str(requirement.specifier).removeprefix("=="))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_environments_of_other_projects_name_exact_versions(name: str) -> None:
    for text in ENVIRONMENTS[name]["requires"]:
        assert [pin.operator for pin in Requirement(text).specifier] == ["=="]
