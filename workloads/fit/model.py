"""A fitted generator: what `bench trace fit` writes (model.json) and `generate` and `fitted:FILE` read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness import untrusted
from harness.data import files
from harness.errors import UsageError, no_such
from workloads.fit import _laws, _whole_draw
from workloads.fit.process import Process, from_json
from workloads.lengths import _empirical

VERSION = 1
ABOUT = "a generator fitted by 'bench trace fit'; use it with --arrivals fitted:FILE, --lengths fitted:FILE"


@dataclass(frozen=True, slots=True)
class Service:
    """One kind of traffic: its arrivals and its lengths (figures of `_empirical.measure`)."""

    tag: str | None
    process: Process
    lengths: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """Services (one per tag of the trace), the trace they were fitted to, and how well (`Quality.facts()`).

    `whole` are the figures of whole sessions (`_whole.measure`), of a trace that names sessions or blocks.
    """

    services: tuple[Service, ...]
    source: Mapping[str, object]
    method: Mapping[str, Any]
    quality: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] | None = None

    @property
    def rate_rps(self) -> float:
        """Mean rate of all services together, requests per second."""
        return sum(service.process.rate_rps for service in self.services)

    def only(self, tag: str | None) -> Model:
        """The model with the one service `tag`, or as it is for None. Raises UsageError for an unknown tag."""
        if tag is None:
            return self
        tags = [service.tag for service in self.services if service.tag is not None]
        if not tags:
            raise UsageError(f"The model has no service '{tag}': its trace had no tags; leave the service out.")
        if tag not in tags:
            raise no_such("service of the model", tag, tags)
        return replace(self, services=tuple(service for service in self.services if service.tag == tag))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model.json; an existing file is replaced in one step. Raises UsageError where it cannot be written."""
        services = [{"tag": s.tag, "arrivals": s.process.as_json(), "lengths": s.lengths} for s in self.services]
        values = {"bench_model": VERSION, "about": ABOUT, "source": self.source, "method": self.method,
                  "quality": self.quality, "services": services, "whole_sessions": self.whole}  # fmt: skip
        text = json.dumps(values, indent=1, allow_nan=False)
        text = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found.group().split()), text)  # a list on one line
        files.write(Path(path), text + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """A stored model. Raises UsageError for a file that is none, that is damaged, or of a newer version."""
        with untrusted.readable(f"Model '{path}'", "; 'bench trace fit TRACE -o FILE' makes one"):
            values = untrusted.read_json(Path(path))
        return cls._of(values, path)

    @classmethod
    def _of(cls, values: Any, path: str | os.PathLike[str]) -> Model:
        version = values.get("bench_model") if isinstance(values, dict) else None
        if not isinstance(version, int):
            raise UsageError(f"'{path}' is not a model: it has no 'bench_model'; give what 'bench trace fit' wrote.")
        if version > VERSION:
            raise UsageError(f"'{path}' is a model of version {version}, newer than {VERSION}; use a newer program.")
        try:
            services, sessions = _services(values["services"]), values.get("whole_sessions")
            if sessions is not None:
                _whole_draw.check(sessions)
            return cls(services, dict(values["source"]), dict(values["method"]), dict(values["quality"]), sessions)
        except KeyError as error:
            raise UsageError(f"'{path}' is a damaged model: {error} is missing; fit it again.") from None
        except (TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
            raise UsageError(f"'{path}' is a damaged model: {error}") from None

    def lines(self) -> list[tuple[str, str]]:
        """Source, parameters and quality in words and numbers, each with the name of what it is about."""
        file, digest, requests = (self.source.get(name) for name in ("file", "sha256", "requests"))
        rows = f"{requests:,}" if isinstance(requests, int) else requests
        lines = [("model of", f"{file} (SHA-256 {str(digest)[:12]}...), {rows} requests")]
        for service in self.services:
            tag = f"{service.tag}: " if service.tag else ""
            lines.append(("arrivals", f"{tag}{service.process.text()}"))
            lines.append(("lengths", f"{tag}{_lengths_text(service.lengths)}"))
        if self.whole is not None:
            lines.append(("whole", _whole_text(self.whole)))
        lines += [("note", note) for note in self.method.get("notes", ())]
        verdict = self.quality.get("verdict", [])
        return lines + [("" if i else "quality", str(sentence)) for i, sentence in enumerate(verdict)]


def _services(parts: Sequence[Mapping[str, Any]]) -> tuple[Service, ...]:
    if not parts:
        raise ValueError("it has no services.")
    return tuple(_service(part) for part in parts)


def _service(values: Mapping[str, Any]) -> Service:
    tag = values["tag"]
    if not (tag is None or isinstance(tag, str)):
        raise ValueError(f"a tag must be text, got {tag!r}.")
    _empirical.sampler(values["lengths"])  # refuses what cannot be drawn from
    return Service(tag, from_json(values["arrivals"]), dict(values["lengths"]))


def _whole_text(whole: Mapping[str, Any]) -> str:
    by = "that its prefix tree makes of it" if whole["found_by"] == "prefix tree" else "of the trace"
    causes = ", ".join(
        f"{part['share']:.0%} {part['cause']} (p50 {_laws.at(part['law'], 0.5):.3g} s)"
        for part in whole["pause"]["causes"]
    )
    agents = whole.get("agents")  # not in models of before
    branches = "" if agents is None else f", {agents['chains']['sessions']:,} branches"
    return (
        f"{whole['sessions']:,} sessions {by}{branches}, {whole['requests'] / whole['sessions']:.3g} turns on average; "
        f"prompts share blocks of {whole['block_tokens']} tokens; pauses {whole['pause_is']}: {causes}"
    )


def _lengths_text(figures: Mapping[str, Any]) -> str:
    sides = [
        f"{name} mean {figures[name]['mean']:,.0f}, p50 {figures[name]['quantiles'][50]:,}"
        for name in ("prompt", "output")
    ]
    return f"{'; '.join(sides)} tokens; rank correlation {figures['spearman']:.2f} ({figures['rows']:,} rows)"
