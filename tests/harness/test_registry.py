"""Plug-ins are found by name, ours and those of other packages."""

import importlib.metadata
from dataclasses import dataclass

import pytest

from harness import registry
from harness.errors import UsageError


@dataclass(frozen=True)
class Pareto:
    """Stands for a plug-in of another package."""

    shape: float = 0.7


class Point:
    name = "pareto"
    module = "no_such_package.pareto"

    def load(self) -> type[Pareto]:
        return Pareto


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package registers arrivals."""
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda *, group: [Point()] if group == "bench.arrivals" else []
    )


@pytest.mark.usefixtures("other_package")
def test_plug_ins_of_other_packages_are_found() -> None:
    """A plug-in that is installed beside bench would not exist for it."""
    assert "pareto" in registry.names("arrivals")
    assert Pareto(0.5) == registry.make("arrivals", "pareto:shape=0.5")
    assert "(from another package)" == registry.summary("arrivals", "pareto")


def test_unknown_names_get_the_nearest() -> None:
    """A typing error would be answered by a traceback."""
    with pytest.raises(UsageError, match=r"No arrivals named 'gama'\. Did you mean 'gamma'"):
        registry.find("arrivals", "gama")


@pytest.mark.parametrize("name", ["_renewal", "-renewal", "__init__"])
def test_helpers_are_no_plug_ins(name: str) -> None:
    """`--arrivals _renewal` would import a module that holds no arrivals."""
    with pytest.raises(UsageError, match="No arrivals named"):
        registry.find("arrivals", name)


def test_a_package_that_is_not_there_is_told() -> None:
    """A broken installation would end in a traceback."""
    with pytest.raises(UsageError, match=r"pip install \."):
        registry.folder("nowhere.at.all")
