"""FastGen's success rule: the prompt at 512 tokens a second, and the answer never slower than a rate on average.

Source: deepspeedai/DeepSpeedExamples, benchmarks/inference/mii/src/plot_effective_throughput.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.data.lists import gap_lists, lists, number
from harness.errors import UsageError
from harness.metrics.deadlines import worst_lag, worst_moving_average
from harness.spec import build, parse, text_of

if TYPE_CHECKING:
    from harness.metrics.objective import Seen

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fastgen:
    """`fastgen:rate=4`: TTFT <= prompt tokens / `prompt_tps`, and the gaps keep `rate` tokens per second. An event
    with several tokens counts as one token.

    Rule `ema`: every exponential moving average (span 16) of a request's gaps is below 1/rate. Rule `cumulative`: the
    first i gaps together take at most i/rate. One token has no gaps. A request that failed did not succeed.
    """

    rate: float = 4.0
    rule: Literal["ema", "cumulative"] = "ema"
    prompt_tps: float = 512.0

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.prompt_tps <= 0:
            raise ValueError("rate and prompt_tps must be above 0 tokens per second.")


@dataclass(frozen=True, slots=True, eq=False)
class Success:
    """(requests,) whether the prompt, and whether the answer was fast enough; `met` is both."""

    met: Mask
    prompt: Mask
    answer: Mask


def is_fastgen(text: str) -> bool:
    """Whether an objective names this rule."""
    return text.strip().lower().partition(":")[0] == "fastgen"


def read(text: str) -> Fastgen:
    """The rule of a spec such as 'fastgen:rate=4,rule=cumulative'. Raises UsageError."""
    found = build(Fastgen, parse(text.strip().lower()))
    if not isinstance(found, Fastgen):  # pragma: no cover  # build makes what it is given
        raise UsageError(f"'{text}' is no rule.")
    return found


def written(rule: Fastgen) -> str:
    """The text that `read` reads back."""
    return text_of(rule, "fastgen") if rule != Fastgen() else "fastgen:rate=4"


def success(seen: Seen, rule: Fastgen) -> Success:
    allowed_s = number(seen.table, "prompt_tokens") / rule.prompt_tps
    prompt = seen.ok & ~(seen.values("ttft") > allowed_s)
    step_s = 1.0 / rule.rate
    parts = []
    for piece in seen.pieces():
        gaps = gap_lists(lists(piece, "token_s"))
        if rule.rule == "ema":
            parts.append(~(worst_moving_average(gaps) >= step_s))
        else:
            parts.append(~(worst_lag(gaps, step_s) > 0))
    answer = seen.ok & np.concatenate([np.empty(0, bool), *parts])
    return Success(prompt & answer, prompt, answer)
