"""Several studies as one: their systems side by side, each named by what distinguishes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reports._clean import clean
from reports._study import Study, System

_ASIDE = ("seed", "requests", "duration", "goal", "drain", "rate", "scale", "warmup", "slo", "senders", "timeout")
"""Options that do not tell systems apart."""


def of_many(studies: Mapping[str, Study]) -> Study:
    """The systems of all studies, which are named by their folders; goals are those of any."""
    specs: dict[str, dict[str, Any]] = {}
    for name, study in studies.items():
        spec = study.sources[0].get("spec") or {} if study.sources else {}
        specs[name] = {key: value for key, value in spec.items() if key not in _ASIDE}
    systems = [
        replace(system, name=text, made=made)
        for name, study in studies.items()
        for system, (text, made) in zip(study.systems, _names(name, study, specs), strict=True)
    ]
    slos = {system.slo for system in systems}
    goals = sorted({goal for study in studies.values() for goal in study.goals})
    sources = tuple(source for study in studies.values() for source in study.sources)
    return Study(slos.pop() if len(slos) == 1 else "", tuple(goals), tuple(_apart(systems)), sources)


def _names(name: str, study: Study, specs: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What distinguishes the systems of one study from those of the others, and from one another; and what was run."""
    others = [spec for other, spec in specs.items() if other != name]
    differs = {key: value for key, value in specs[name].items() if any(spec.get(key) != value for spec in others)}
    told = ", ".join(f"{clean(key, 40)} {clean(value, 60)}" for key, value in differs.items()) or clean(name, 60)
    several = len({system.made for system in study.systems}) > 1
    for system in study.systems:
        own = system.name if len(study.systems) > 1 else ""
        made = system.made if several else ""
        yield _joined(told, own), _joined(told, made)


def _joined(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def _apart(systems: Sequence[System]) -> list[System]:
    """Equal names are counted: 'policy sarathi (2)'."""
    seen: dict[str, int] = {}
    found = []
    for system in systems:
        seen[system.name] = number = seen.get(system.name, 0) + 1
        found.append(system if number == 1 else replace(system, name=f"{system.name} ({number})"))
    return found
