"""The structure of the product: which modules name which packages, and that there is no import cycle."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def size():
    sys.path.insert(0, str(TOOLS))
    import size

    yield size
    sys.path.remove(str(TOOLS))
    del sys.modules["size"]


@pytest.fixture(scope="module")
def files(size):
    return size.sources()


def test_only_the_commands_and_the_python_api_name_another_package(size, files):
    """An import by string would evade import-linter and mypy: harness would know of the others after all."""
    assert [] == size.siblings(files)


def test_no_import_comes_back_to_its_start(size, files):
    """In a circle no file can be read, or tested, without all others."""
    assert [] == size.circles(size.imports(files))


def test_a_sibling_that_is_named_is_found(size):
    """The checks above could not fail."""
    text = 'import importlib\n\nm = importlib.import_module(f"reports.answers.{kind}")\n    from backends import sim\n'
    file = size.Source("harness/runner/run.py", "harness.runner.run", text)

    assert 2 == len(size.siblings([file]))
    assert ["a <-> b"] == size.circles({"a": {"b"}, "b": {"a"}, "c": {"a"}})
