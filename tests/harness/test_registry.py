"""Plug-ins are found by name, ours and those of other packages."""

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness import registry
from harness.errors import UsageError
from harness.spec import types_of


@dataclass(frozen=True)
class Pareto:
    """Stands for a plug-in of another package."""

    shape: float = 0.7


class Point:
    name = "pareto"
    module = "no_such_package.pareto"

    def load(self) -> type[Pareto]:
        return Pareto


def only(its_group: str, point: object) -> SimpleNamespace:
    """What `entry_points` gives where one is registered."""
    return SimpleNamespace(select=lambda *, group: [point] if group == its_group else [])


@pytest.fixture
def other_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package registers arrivals."""
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: only("bench.arrivals", Point()))
    for known in (registry._all_entry_points, registry.find):
        known.cache_clear()
    yield
    for known in (registry._all_entry_points, registry.find):
        known.cache_clear()


@pytest.mark.usefixtures("other_package")
def test_plug_ins_of_other_packages_are_found() -> None:
    """A plug-in that is installed beside bench would not exist for it."""
    assert "pareto" in registry.names("arrivals")
    assert Pareto(0.5) == registry.make("arrivals", "pareto:shape=0.5")
    assert "(from another package)" == registry.summary("arrivals", "pareto")


def test_a_package_that_cannot_be_imported_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One installed package that needs a GPU ended every command as a bug in bench."""
    package = tmp_path / "brokenpkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('needs a GPU')")
    (package / "mine.py").write_text('"""A system."""\n\n\nclass LastPolicy:\n    """Serve the last."""\n')
    point = SimpleNamespace(name="mine", module="brokenpkg.mine")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: only("bench.systems", point))
    for known in (registry._all_entry_points, registry._in_systems):
        known.cache_clear()
    try:
        assert "last" in registry.names("policies")
        assert "Serve the last." == registry.summary("policies", "last")
    finally:
        for known in (registry._all_entry_points, registry._in_systems):
            known.cache_clear()


def test_unknown_names_get_the_nearest() -> None:
    """A typing error would be answered by a traceback."""
    with pytest.raises(UsageError, match=r"No arrivals named 'gama'\. Did you mean 'gamma'"):
        registry.find("arrivals", "gama")


@pytest.mark.parametrize("name", ["_operational", "-operational", "__init__"])
def test_helpers_are_no_plug_ins(name: str) -> None:
    """`--arrivals _operational` would import a module that holds no arrivals."""
    with pytest.raises(UsageError, match="No arrivals named"):
        registry.find("arrivals", name)


def test_a_package_that_is_not_there_is_reported() -> None:
    """A broken installation would end in a traceback."""
    with pytest.raises(UsageError, match=r"pip install \."):
        registry.folder("nowhere.at.all")


def test_a_script_of_the_user_that_hides_a_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Names as common as `reports` would give an empty list, or a traceback of an import."""
    script = tmp_path / "reports.py"
    script.touch()
    monkeypatch.delitem(sys.modules, "reports", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(UsageError, match=rf"'{re.escape(str(script))}' hides the package 'reports' of bench"):
        registry.folder("reports.formats")


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Arrivals in one file of their own, in a file of several, as a row, and as a key of a table."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "alone.py").write_text('"""Alone in its file."""\nclass Alone:\n    """A class."""\n')
    (folder / "builtin.py").write_text(
        "from dataclasses import dataclass\nimport shelf._row\nclass SidebySide2:\n"
        '    """Beside others.\n\n    Source: none.\n    """\nclass _Helper: ...\n'
        'ROWS: tuple[shelf._row.Row, ...] = (shelf._row.Row(name="row_0.1", about="A row."),)\n'
    )
    (folder / "_row.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Row:\n    name: str\n    about: str\n"
    )
    (folder / "arrivals.toml").write_text('[keyed]\nabout = """\nA key.\n\nMore."""\n')
    (folder / "_rows.py").write_text('def plugin(name): return type("Keyed", (), {"__doc__": name})\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "arrivals": "shelf"})
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "shelf"]:
        del sys.modules[name]


@pytest.mark.usefixtures("shelf")
def test_short_plug_ins_share_a_file() -> None:
    """Ten plug-ins of three lines would be ten files, and a name that is listed could not be used."""
    names = registry.names("arrivals")
    result = {name: registry.summary("arrivals", name) for name in names}

    assert {
        "alone": "Alone in its file.", "sideby-side2": "Beside others.", "row-0-1": "A row.", "keyed": "A key."
    } == result  # fmt: skip
    assert "shelf.builtin" not in sys.modules  # listing imports nothing
    assert "SidebySide2" == registry.find("arrivals", "Sideby_Side2").__name__
    assert "row_0.1" == registry.make("arrivals", "row-0-1").name
    assert "Keyed" == registry.find("arrivals", "keyed").__name__
    assert "Beside others.\n\nSource: none." == registry.about(registry.find("arrivals", "sideby-side2"))
    assert "Alone in its file.\n\nA class." == registry.about(registry.find("arrivals", "alone"))
    assert "A row." == registry.about(registry.find("arrivals", "row-0-1"))
    assert ["alone", "sideby-side2"] == [
        registry.name_of(registry.find("arrivals", name)()) for name in ("alone", "sideby-side2")
    ]
    with pytest.raises(UsageError, match="'row-0-1:x=1': row-0-1 takes no arguments"):
        registry.make("arrivals", "row-0-1:x=1")
    for name in ("builtin", "helper", "sidebyside2"):
        with pytest.raises(UsageError, match="No arrivals named"):
            registry.find("arrivals", name)


def test_types_and_text_of_a_compiled_class_are_those_of_its_source(tmp_path, monkeypatch):
    """mypyc keeps neither: no option of a compiled policy could be given, and `bench explain` would show nothing."""
    (tmp_path / "shapes.py").write_text(
        '"""A file."""\nclass Shape:\n    """A class."""\n    size: int | None = None\n'
    )
    compiled = ModuleType("shapes")
    compiled.__file__ = str(tmp_path / "shapes.cpython-311.so")
    monkeypatch.setitem(sys.modules, "shapes", compiled)
    bare = type("Shape", (), {"__module__": "shapes", "__annotations__": {"size": type}})

    assert {"size": int | None} == types_of(bare)
    assert "A file.\n\nA class." == registry.about(bare)


def test_a_system_holds_plug_ins_of_several_kinds(tmp_path, monkeypatch):
    """A paper has a policy and a router of one name; in folders by kind its idea is spread over seven files."""
    folder = tmp_path / "papers"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "far_sight.py").write_text(
        '"""Far Sight.\n\nSource: none.\n"""\nclass Seen: ...\nclass _HiddenPolicy: ...\n'
        'class FarPolicy:\n    """Schedules ahead.\n\n    Far.\n    """\nclass FarRouter:\n    """Sends ahead."""\n'
        "Row = dict[str, float]\ndef _hidden() -> list[Row]: ...\ndef helper(rows: list[Row]) -> Row: ...\n"
        "def far_away(\n    speed_s: float = 0.5,\n) -> list[Row]:  # fmt: skip\n"
        '    """Tell how far.\n\n    Far.\n    """\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "SYSTEMS", "papers")
    monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "systems": "papers"})
    registry._in_systems.cache_clear()
    try:
        assert "Far Sight.\n\nSource: none.\n" == registry.find("systems", "far_sight").__doc__
        assert [("policies", "far"), ("routers", "far"), ("theory", "far-away")] == registry.plugins_of("far-sight")
        assert "far" in registry.names("policies")
        assert "far" not in registry.names("kv")
        assert ["far-away"] == registry.names("theory")
        assert "Tell how far." == registry.summary("theory", "far-away")
        assert "far_away" == registry.find("theory", "Far_Away").__name__
        with pytest.raises(UsageError, match="No closed form named 'far-sight'"):
            registry.find("theory", "far-sight")
        assert "Schedules ahead." == registry.summary("policies", "far")
        assert "FarRouter" == registry.find("routers", "Far").__name__
        assert "far" == registry.name_of(registry.find("policies", "far")())
        assert "Sends ahead.\n\nFar Sight.\n\nSource: none." == registry.about(registry.find("routers", "far"))
    finally:
        registry._in_systems.cache_clear()
        sys.modules.pop("papers.far_sight", None)
        sys.modules.pop("papers", None)
