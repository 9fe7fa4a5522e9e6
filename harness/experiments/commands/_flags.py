"""The flags of a foreign command, which of them were used, and the bench command that is made of them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.spec import seconds

_FLAG = re.compile(r"--?[A-Za-z]")
LOCAL = "http://127.0.0.1:8000"


@dataclass(slots=True)
class Flags:
    """Flags with their values, those given several times one after the other; `used` are those that were looked at."""

    given: dict[str, list[str]]
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, words: Sequence[str]) -> "Flags":
        """The flags of a line without its program; `--a_b` is `--a-b`.

        Raises UsageError for a word before the first one.
        """
        found: dict[str, list[str]] = {}
        name: str | None = None
        for word in (word for word in words if word != "--"):
            if _FLAG.match(word):
                flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
                name = flag.replace("_", "-") if flag.startswith("--") else flag
                found.setdefault(name, []).extend([value] if equals else [])
            elif name is None:
                raise UsageError(f"'{word}' stands before the first flag of the command; give one whole command.")
            else:
                found[name].append(word)
        return cls(found)

    def words(self, *names: str) -> list[str]:
        """All values of the first of these flags that was given; none where it was not."""
        self.used |= {name for name in names if name in self.given}
        return next((self.given[name] for name in names if name in self.given), [])

    def has(self, *names: str) -> bool:
        """Whether one of these flags was given."""
        self.words(*names)
        return any(name in self.given for name in names)

    def text(self, *names: str) -> str | None:
        """The last value of a flag; None where it was not given. Raises UsageError for a flag without a value."""
        values = self.words(*names)
        if not values and self.has(*names):
            raise UsageError(f"{next(n for n in names if n in self.given)} has no value in the command.")
        return values[-1] if values else None

    def number(self, *names: str) -> float | None:
        """The same as a number; `inf` is one."""
        text = self.text(*names)
        try:
            return None if text is None else float(text)
        except ValueError:
            name = next(n for n in names if n in self.given)
            raise UsageError(f"{name} must be a number, got '{text}'.") from None

    def whole(self, *names: str) -> int | None:
        """The same as a whole number."""
        found = self.number(*names)
        if found is not None and found != round(found):
            raise UsageError(f"{next(n for n in names if n in self.given)} must be a whole number, got {found:g}.")
        return None if found is None else round(found)


@dataclass(slots=True)
class Line:
    """A bench command in the making: its options in order, and what a reader must know about it.

    `lost` are flags without an equivalent, with the reason.
    """

    command: str = "run"
    options: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def add(self, option: str, value: object) -> None:
        """Give an option; None leaves it out."""
        if value is not None:
            self.options.setdefault(option, []).append(f"{value:g}" if isinstance(value, float) else str(value))

    @property
    def words(self) -> list[str]:
        return ["bench", self.command, *(w for name, vs in self.options.items() for v in vs for w in (name, v))]


def server(line: Line, base: str | None, endpoint: str | None, model: str | None, **more: object) -> None:
    """The address: `base` with the path that stands before the route of `endpoint`, and the model."""
    url = (base or LOCAL).rstrip("/")
    url = url if re.match(r"https?://", url) else f"http://{url}"
    route = re.fullmatch(r"(.*?)(/chat)?/completions/?", endpoint or "/v1/chat/completions")
    if route is None:
        line.lost[f"{endpoint}"] = "bench speaks OpenAI's completions and chat completions; below it asks /v1"
    root = "/v1" if route is None else route[1]
    facts = {"url": url if url.endswith(root) else url + root, "model": model, **more}
    if route is not None and route[2] is None:
        facts["api"] = "completions"
    line.add("--backend", "openai:" + ",".join(f"{k}={v}" for k, v in facts.items() if v is not None))


def lengths(line: Line, prompt: tuple[int, int], output: tuple[int, int]) -> None:
    """Lengths uniform between two bounds each, or fixed where both are the same."""
    if prompt[0] == prompt[1] and output[0] == output[1]:
        line.add("--workload", f"fixed:prompt={prompt[0]},output={output[0]}")
        return
    line.add("--workload", f"uniform:prompt_min={prompt[0]},prompt_max={prompt[1]},"
                           f"output_min={output[0]},output_max={output[1]}")  # fmt: skip


def normal(line: Line, prompt: tuple[float, float], output: tuple[float, float]) -> None:
    """Lengths by normal laws, each given by mean and standard deviation; fixed without a deviation."""
    if not prompt[1] and not output[1]:
        line.add("--workload", f"fixed:prompt={round(prompt[0])},output={round(output[0])}")
        return
    found = []
    for name, (mean, spread) in (("prompt", prompt), ("output", output)):
        # without a spread the law is so narrow that all lengths are the same whole number
        found.append(f"{name}_mean={mean:g},{name}_cv={max(spread / mean, 1e-6):.6g},{name}_cap=none")
    line.add("--workload", f"normal:{','.join(found)}")


def users(line: Line, number: int, requests: int | None) -> None:
    """A closed loop of users who send again at once."""
    line.add("--arrivals", f"closed:users={number},think=0s")
    line.add("--requests", requests)


def gamma(line: Line, rate_rps: float, shape: float) -> None:
    """Arrivals at a rate whose gaps are gamma with that shape; 1 is Poisson, infinity equal gaps."""
    line.add("--rate", rate_rps)
    if shape == float("inf"):
        line.add("--arrivals", "constant")
    else:
        line.add("--arrivals", "poisson" if shape == 1 else f"gamma:cv={shape**-0.5:.6g}")


def objectives(line: Line, bounds: Sequence[str], names: dict[str, str], flag: str) -> None:
    """The SLO of bounds such as `ttft:250` in ms; what bench has no metric for is named."""
    found = []
    for bound in (one for text in bounds for one in text.replace(",", " ").split()):
        name, colon, value = bound.partition(":")
        try:
            limit_ms = float(value) if colon else float("nan")
        except ValueError:
            limit_ms = float("nan")
        if not limit_ms >= 0:
            raise UsageError(f"{flag} must be METRIC:MILLISECONDS, got '{bound}'.")
        if name in names:
            found.append(f"{names[name]}={limit_ms / 1e3:.9g}")
        else:
            line.lost[f"{flag} {bound}"] = "bench has no bound on that metric"
    if found:
        line.add("--slo", ",".join(found))


def needs_slo(line: Line) -> None:
    """A search needs an SLO: that of the preset chatbot where the command has none."""
    if "--slo" not in line.options:
        line.add("--slo", "ttft=0.25,tpot=0.1")
        line.notes.append("the command has no SLO and bench's search needs one: --slo is an example, set your own")


def body(line: Line, fields: dict[str, object]) -> None:
    if fields:
        line.add("--extra-body", json.dumps(fields))


def as_json(text: str, flag: str) -> dict[str, object]:
    """The JSON object of a flag. Raises UsageError for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{flag} must be a JSON object, got '{text}'.")
    return found


def duration(text: str | float, flag: str) -> str:
    """A duration of seconds as bench writes it."""
    return f"{seconds(str(text), flag):g}s"
