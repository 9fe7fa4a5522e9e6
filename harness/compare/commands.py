"""What makes the runs of a side: `bench run`, or any other command, with places for a seed and for its result."""

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from harness.config import RunSpec
from harness.errors import UsageError

SEED, OUT = "{seed}", "{out}"
"""Places in a command: the seed of the pair, and where its result goes (a folder, or a name that an ending follows)."""

WARMUP = "mser5"
"""The cut of warm-up in runs that are made for a comparison, where nothing else is asked."""

_OURS = ("--seed", "--out", "--force", "--json")
"""Options of `bench run` that the comparison gives itself."""

_SEARCHES = ("capacity", "sweep")
"""Commands of ours that have seeds of their own."""

_SHELL = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SECRET = re.compile(
    r"(authorization|api[-_]?key|token|secret|passw(?:or)?d)(\s*[:=]\s*)(?:(?:bearer|basic|token)\s+)?[^\s'\"]+",
    re.IGNORECASE,
)
_HEADER = re.compile(r"(--header[=\s]+['\"]?[\w-]+\s*)(:\s*)[^'\"]+")


@dataclass(frozen=True, slots=True)
class Command:
    """One side: the words of a command, in which `{seed}` and `{out}` are filled in for each run.

    `text` is what people read; `variables` go over those of the environment. `ours` tells that `bench` makes the run.
    """

    text: str
    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    ours: bool = False

    def at(self, seed: int, out: Path) -> list[str]:
        """The words for one run."""
        return [word.replace(SEED, str(seed)).replace(OUT, str(out)) for word in self.words]

    @property
    def seeded(self) -> bool:
        """Whether the seed of a pair reaches the command."""
        return any(SEED in word for word in self.words)


def parse(text: str) -> Command:
    """The command of a `--run` text. Raises UsageError for one that cannot be started, or that needs a shell."""
    words = _words(text)
    given = 0
    while given < len(words) and _VARIABLE.fullmatch(words[given]):
        given += 1
    variables = dict(word.split("=", 1) for word in words[:given])
    words = _found(words[given:], text)
    at = _command_at(words)
    name, options = ("", []) if at is None else (words[at], words[at + 1 :])
    if name == "run":
        words = [*words[: -len(options) or None], *_own(options, text)]
    elif name in _SEARCHES and not any(OUT in word for word in options):
        words = [*words, f"--out={OUT}"]
    return Command(shown(text), tuple(words), variables, ours=name == "run" or name in _SEARCHES)


def of_spec(spec: RunSpec, text: str) -> Command:
    """The `bench run` of a spec, whose seed is left open; `text` names it."""
    words = [sys.executable, "-m", "harness", "run"]
    for option, value in spec.options().items():
        values = str(value).split("\n") if option == "header" else [str(value)]
        words += [f"--{option}={one}" for one in values if option != "seed"]
    return Command(shown(text), (*words[:4], *_own(words[4:], text)), ours=True)


def shown(text: str) -> str:
    """A text without the keys that may stand in it, and without the values of headers."""
    return _SECRET.sub(r"\1\2[hidden]", _HEADER.sub(r"\1\2[hidden]", text))


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--run {text!r} cannot be read: {str(error).lower()}.") from None
    if not words:
        raise UsageError("--run names a command, such as 'bench run --backend sim'; got an empty text.")
    if any(word in _SHELL or word.endswith(";") for word in words):
        raise UsageError(f"--run {text!r} is started without a shell; put it into one: --run \"sh -c '...'\".")
    return words


def _found(words: list[str], text: str) -> list[str]:
    """The words with a program that exists; `bench` is this one where there is none on the path."""
    if not words:
        raise UsageError(f"--run {text!r} sets variables and names no command.")
    if shutil.which(words[0]) is not None:
        return words
    if words[0] == "bench":
        return [sys.executable, "-m", "harness", *words[1:]]
    raise UsageError(f"--run {text!r}: there is no program '{words[0]}'; give its path.")


def _command_at(words: list[str]) -> int | None:
    """Where the command of `bench` stands; None for another program."""
    program = Path(words[0]).name
    if program == "bench" and len(words) > 1:
        return 1
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
