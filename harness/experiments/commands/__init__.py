"""Commands of other load generators as commands of bench, with what their numbers mean otherwise.

`tools.toml` holds how they are called and the flags without an equivalent; a module translates what has one.
"""

import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from harness import registry
from harness.errors import UsageError
from harness.experiments.commands import others, profiling, serving
from harness.experiments.commands._flags import Flags, Line

_TRANSLATE = {**serving.TOOLS, **profiling.TOOLS, **others.TOOLS}
_SHARED = (
    (
        "TTFT and E2E: {tool} counts from sending, bench from when the request was due; "
        "'bench slo RUN --profile {profile}' prints both"
    ),
    ("percentiles: both are over the requests that completed; in bench a failed request misses the SLO all the same"),
)


@dataclass(frozen=True, slots=True)
class Translation:
    """The words of a bench command, and what differs from the command that it was made of.

    `lost` are flags without an equivalent with the reason, `unknown` those that this version does not know.
    """

    tool: str
    words: tuple[str, ...]
    notes: tuple[str, ...]
    lost: dict[str, str]
    unknown: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.words)


def tools() -> dict[str, Any]:
    """What is known of each tool, by its name."""
    return tomllib.loads(Path(__file__).with_name("tools.toml").read_text(encoding="utf-8"))


def translate(text: str) -> Translation:
    """The bench command for a command of another tool.

    Raises UsageError for a text that is none of the known commands, and for values that the tool would refuse.
    """
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise UsageError(f"The command cannot be read ({error}); quote it as for a shell.") from None
    known = tools()
    tool, rest = _tool(words, known)
    flags, line = Flags.of(rest), Line()
    _TRANSLATE[tool](flags, line)
    reasons = {flag: row["why"] for row in known[tool]["none"] for flag in row["flags"]}
    unknown = []
    for flag, values in flags.given.items():
        whole = " ".join([flag, *values])
        why = next((why for name, why in reasons.items() if fnmatchcase(flag, name)), None)
        if flag in flags.used:
            continue
        if why is None:
            unknown.append(whole)
        else:
            line.lost[whole] = why
    profile = known[tool]["profile"]
    shared = [note.format(tool=tool, profile=registry.find("profiles", profile).name) for note in _SHARED]
    return Translation(
        tool, tuple(line.words), (*line.notes, *known[tool]["meanings"], *shared), line.lost, tuple(unknown)
    )


def _tool(words: Sequence[str], known: dict[str, Any]) -> tuple[str, Sequence[str]]:
    """The tool that is called, and the words after its name."""
    names = [word.rpartition("/")[2] for word in words]
    for tool, facts in known.items():
        for program in facts["programs"]:
            wanted = program.split()
            for at in range(len(names) - len(wanted) + 1):
                if names[at : at + len(wanted)] == wanted and not any(w.startswith("--") for w in words[:at]):
                    return tool, words[at + len(wanted) :]
    programs = [facts["programs"][0] for facts in known.values()]
    near = get_close_matches(" ".join(words[:3]), programs, n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise UsageError(f"That is no command of a load generator that bench knows.{hint} Known: {', '.join(programs)}.")
