"""Pytest plugin for `mutants.py`: selects tests, limits their time, records coverage. Used in a copy only.

MUTANTS_LOG is a folder for tests.jsonl (name, seconds, outcome and shared fixtures of each phase) and ran.jsonl
(which test ran which mutant, see `NOTE` there). MUTANTS_CHOSEN is a file with the tests to run, in order, and their
seconds. With MUTANTS_MAP caches are emptied before each test, so that each runs what it needs.
"""

import functools
import json
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHORT_S, TIMES = 10.0, 5.0
"""Minimum time limit of a test, and the limit as a multiple of its time."""
CACHES: list[Any] = []


def pytest_configure() -> None:
    """In the map, remember the caches of the product and of conftest files, so that each test fills them anew."""
    if "MUTANTS_MAP" in os.environ:
        functools.cache = _cache


def _cache(function: Any) -> Any:
    made = functools.lru_cache(maxsize=None)(function)
    if re.match("harness|backends|workloads|reports|.*conftest", function.__module__):
        CACHES.append(made)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in their order, each with its own limit."""
    if path := os.environ.get("MUTANTS_CHOSEN"):
        chosen = json.loads(Path(path).read_text(encoding="utf-8"))
        order = {name: i for i, name in enumerate(chosen)}
        items[:] = sorted((i for i in items if i.nodeid in order), key=lambda i: order[i.nodeid])
        for item in items:
            limit_s = max(SHORT_S, TIMES * chosen[item.nodeid])
            item.add_marker(pytest.mark.timeout(limit_s), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    """Attribute the coverage of a shared fixture to each test that uses it."""
    if fixturedef.scope != "function" and "MUTANTS_FIXTURE" not in os.environ:
        os.environ["MUTANTS_FIXTURE"] = f"{fixturedef.baseid} {fixturedef.argname}"
        try:
            return (yield)
        finally:
            del os.environ["MUTANTS_FIXTURE"]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Generator[None, Any, Any]:
    """Write the duration, outcome and shared fixtures of each phase of a test."""
    report: Any = yield
    fixtures = item._fixtureinfo.name2fixturedefs.items()  # noqa: SLF001
    shared = [f"{f[-1].baseid} {name}" for name, f in fixtures if f[-1].baseid and f[-1].scope != "function"]
    with Path(os.environ["MUTANTS_LOG"], "tests.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, report.duration, report.outcome, shared]) + "\n")
    return report


def pytest_runtest_logstart() -> None:
    """Clear coverage and caches before each test."""
    if note := sys.modules.get("mutants_note"):
        note.seen.clear()
    for cache in CACHES:
        cache.cache_clear()
