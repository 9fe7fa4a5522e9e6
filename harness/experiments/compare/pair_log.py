"""The pairs of a comparison as they are made: one file that says what is compared, and which pairs are complete.

A pair is entered when both of its runs have ended, so that after a kill a pair begun is made again in full: its two
runs belong side by side.

What makes the runs of a side: `bench run`, or any other command, with places for a seed and for its result.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import structs

from harness.data import host
from harness.data.codec import encode
from harness.data.folder import make_folder
from harness.errors import UsageError
from harness.experiments.compare.compare_json import ComparedPair
from harness.experiments.folder import ExperimentFolder
from harness.ipc import python
from harness.options import RunSpec

KIND = "pairs"
FILE = f"{KIND}.json"
SIDES = ("base", "head")


SEED, OUT = "{seed}", "{out}"
"""Places in a command: the seed of the pair, and where its result goes (a folder, or a name that an ending follows)."""
WARMUP = "mser5"
"""The cut of warm-up in runs that are made for a comparison, unless another one is given."""
_OURS = ("--seed", "--out", "--force")
"""Options of `bench run` that the comparison gives itself."""
_SEARCHES = ("capacity", "sweep")
"""Commands of bench that have seeds of their own."""
_SHELL = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SECRET = re.compile(
    r"(authorization|api[-_]?key|token|secret|passw(?:or)?d)(\s*[:=]\s*)(?:(?:bearer|basic|token)\s+)?[^\s'\"]+",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(--header[=\s]+['\"]?[\w-]+\s*)(:\s*)[^'\"]+")


@dataclass(slots=True)
class PairLog:
    """What `pairs.json` of a folder holds; every change is on disk when its method returns.

    Paths in `rows` are below the folder.
    """

    out: Path
    about: Mapping[str, Any]
    rows: list[ComparedPair] = field(default_factory=list)
    interim: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def opened(cls, out: Path, sides: tuple[Command, Command], first_seed: int) -> PairLog:
        """The log of a folder, new or resumed. Raises UsageError where the folder holds something else."""
        about = {
            **{name: _about(side) for name, side in zip(SIDES, sides, strict=True)},
            "first_seed": first_seed,
        }
        log = cls(out, about)
        if (stored := log._folder.read()) is not None:
            log._take(stored)
        make_folder(out)
        log._write()
        return log

    @property
    def _folder(self) -> ExperimentFolder:
        return ExperimentFolder(self.out, KIND, "comparison", "compare")

    @property
    def complete(self) -> list[ComparedPair]:
        """The valid pairs, one row each, in order."""
        return sorted((row for row in self.rows if row.valid), key=lambda row: row.pair)

    def attempts(self, pair: int) -> list[ComparedPair]:
        """All attempts at a pair so far."""
        return [row for row in self.rows if row.pair == pair]

    def was_made_again(self, pair: int) -> bool:
        """Whether a pair that could be used has had its second attempt, which may have failed."""
        return any(row.valid or row.unusual for row in self.attempts(pair)[:-1])

    def folder(self, pair: int, seed: int) -> Path:
        """An empty folder for the next attempt at a pair; what an attempt that was killed left there is dropped."""
        before = len(self.attempts(pair))
        suffix = "" if not before else "-again" if before == 1 else f"-again{before}"
        path = self.out / "pairs" / f"{pair:02d}-seed{seed}{suffix}"
        if path.exists():
            shutil.rmtree(path)
        path.mkdir(parents=True)
        return path

    def add(self, row: ComparedPair) -> None:
        """Enter an attempt that has ended; a valid one takes the place of a valid one before."""
        if row.valid:
            why = "unlike the other pairs; made again"
            self.rows = [
                structs.replace(old, valid=False, unusual=True, why=why) if old.valid and old.pair == row.pair else old
                for old in self.rows
            ]
        self.rows.append(row)
        self._write()

    def add_analysis(self, pairs: int) -> None:
        """Enter that a verdict was drawn from so many pairs."""
        if pairs not in self.interim:
            self.interim.append(pairs)
            self._write()

    def note(self, sentence: str) -> bool:
        """Enter a note for the reader of the answer; whether it is new."""
        new = sentence not in self.notes
        if new:
            self.notes.append(sentence)
            self._write()
        return new

    def seconds(self) -> float | None:
        """Mean time of a run so far; None before the first pair."""
        took_s = [(row.base_s or 0.0) + (row.head_s or 0.0) for row in self.rows]
        return sum(took_s) / (2 * len(took_s)) if took_s else None

    def _take(self, kept: Mapping[str, Any]) -> None:
        try:
            about = {name: kept["about"][name] for name in self.about}
            self.rows = msgspec.convert(kept["pairs"], list[ComparedPair])
            self.interim, self.notes = [int(n) for n in kept["looks"]], [str(n) for n in kept["notes"]]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"'{self.out / FILE}' cannot be read ({type(error).__name__}: {error}); name an empty folder."
            ) from None
        self._check(about)

    def _check(self, kept: Mapping[str, Any]) -> None:
        """Pairs of something else must not be added to."""
        for name in SIDES:
            if kept[name]["sha256"] != self.about[name]["sha256"]:
                raise UsageError(
                    f"'{self.out}' compares other runs: its {name} is '{kept[name]['command']}', now it would be "
                    f"'{self.about[name]['command']}'{_differing(kept[name], self.about[name])}; "
                    "give another --out, or the old command."
                )
        if kept["first_seed"] != self.about["first_seed"]:
            raise UsageError(
                f"'{self.out}' begins with seed {kept['first_seed']}, not {self.about['first_seed']}; "
                "give another --out, or the old --seed."
            )

    def _write(self) -> None:
        content = {
            "schema": 1,
            "kind": KIND,
            "versions": host.versions(),
            "about": self.about,
            "looks": self.interim,
            "notes": self.notes,
            "pairs": [encode(row) for row in self.rows],
        }
        self._folder.write(content)


def _about(side: Command) -> dict[str, Any]:
    """What a side is: for people without its secrets, and a hash that holds them all."""
    words = [*side.words[side.ours :], *(f"{name}={value}" for name, value in side.variables.items())]
    sha256 = hashlib.sha256(json.dumps(words).encode()).hexdigest()
    hidden = ["[hidden]" if before in ("--header", "-H") else shown(word) for before, word in pairwise(["", *words])]
    return {"command": side.text, "words": hidden, "sha256": sha256}


def _differing(kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Which words differ, where the texts are the same because the difference lies in what both sides share."""
    if kept["command"] != now["command"]:
        return ""
    before, after = ([w for w in cmd["words"] if w not in other["words"]] for cmd, other in ((kept, now), (now, kept)))
    return f" ({' '.join(before) or 'nothing'} there, {' '.join(after) or 'nothing'} now)"


@dataclass(frozen=True, slots=True)
class Command:
    """One side: the words of a command, in which `{seed}` and `{out}` are filled in for each run.

    `text` is what people read; `variables` go over those of the environment. `ours` tells that `bench` makes the run.
    """

    text: str
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ours: bool = False

    def at(self, seed: int, out: Path, shared: Path | None = None) -> list[str]:
        """The words for one run; one by this installation gets the file by which all of them ask a remote server once.

        Another version of bench may not know that option.
        """
        words = [word.replace(SEED, str(seed)).replace(OUT, str(out)) for word in self.words]
        place = _command_at(words)
        if shared is None or place is None or words[place] != "run":
            return words
        folder, prefix = (Path(program).parent.resolve() for program in (shutil.which(words[0]) or "", sys.executable))
        return [*words, f"--probed={shared}"] if folder == prefix else words

    @property
    def seeded(self) -> bool:
        """Whether the seed of a pair reaches the command."""
        return any(SEED in word for word in self.words)


def parse(text: str) -> Command:
    """The command of a `--run` text. Raises UsageError for one that cannot be started, or that needs a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--run {text!r} cannot be read: {str(error).lower()}.") from None
    if not words:
        raise UsageError("--run names a command, such as 'bench run --backend sim'; got an empty text.")
    if any(word in _SHELL or word.endswith(";") for word in words):
        raise UsageError(f"--run {text!r} is started without a shell; put it into one: --run \"sh -c '...'\".")
    count = 0
    while count < len(words) and _VARIABLE.fullmatch(words[count]):
        count += 1
    variables = dict(word.split("=", 1) for word in words[:count])
    words = _found(words[count:], text)
    place = _command_at(words)
    name, options = ("", []) if place is None else (words[place], words[place + 1 :])
    if name == "run":
        words = [*words[: -len(options) or None], *_own(options, text)]
    elif name in _SEARCHES and not any(OUT in word for word in options):
        words = [*words, f"--out={OUT}"]
    return Command(shown(text), tuple(words), variables, ours=name == "run" or name in _SEARCHES)


def of_spec(spec: RunSpec, text: str) -> Command:
    """The `bench run` of a spec, whose seed is left open; `text` names it."""
    words = python("harness.cli", "run")
    for option, value in spec.options().items():
        values = str(value).split("\n") if option == "header" else [str(value)]
        words += [f"--{option}={part}" for part in values if option != "seed"]
    return Command(shown(text), (*words[:5], *_own(words[5:], text)), ours=True)


def shown(text: str) -> str:
    """A text without the keys that may stand in it, and without the values of headers."""
    return _SECRET.sub(r"\1\2[hidden]", _HEADER.sub(r"\1\2[hidden]", text))


def _found(words: list[str], text: str) -> list[str]:
    """The words with a program that exists; `bench` is this one where there is none on the path."""
    if not words:
        raise UsageError(f"--run {text!r} sets variables and names no command.")
    if shutil.which(words[0]) is not None:
        return words
    if words[0] == "bench":
        return python("harness.cli", *words[1:])
    raise UsageError(f"--run {text!r}: there is no program '{words[0]}'; give its path.")


def _command_at(words: list[str]) -> int | None:
    """Where the command of `bench` stands; None for another program."""
    program = Path(words[0]).name
    if program == "bench" and len(words) > 1:
        return 1
    if words[:4] == python("harness.cli") and len(words) > 4:
        return 4
    if program.startswith("python") and words[1:3] == ["-m", "harness"] and len(words) > 3:
        return 3
    return None


def _own(options: list[str], text: str) -> list[str]:
    """The options of a `bench run` with those that a comparison adds. Raises UsageError where they are taken."""
    names = {word.split("=", 1)[0] for word in options}
    for option in _OURS:
        if option in names and not any(place in word for place in (SEED, OUT) for word in options):
            raise UsageError(
                f"--run {text!r}: leave out {option}; each run gets its own (--seed of bench compare is the first)."
            )
    added = [] if any(SEED in word for word in options) else [f"--seed={SEED}"]
    added += [] if any(OUT in word for word in options) else [f"--out={OUT}"]
    added += [] if {"--warmup", "--config"} & names else [f"--warmup={WARMUP}"]
    return [*options, *added, *(option for option in ("--quiet", "--no-html") if option not in names)]
