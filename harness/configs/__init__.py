"""Named configurations: the settings of published experiments, one TOML file each, for `--config NAME`."""

from pathlib import Path


def names() -> list[str]:
    """Sorted names of all configurations."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.toml"))


def text_of(name: str) -> str | None:
    """The file of that name as it stands, None where there is none."""
    return None if name not in names() else Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8")


def about(name: str) -> str:
    """Its first line: what it is."""
    return (text_of(name) or "").partition("\n")[0].removeprefix("# ")
