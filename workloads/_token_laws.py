"""How long the requests of the clients of a ServeGen pool are.

The tokens of prompt and output are drawn each on its own, given client and time, for lack of joint counts; their
correlation is that between clients. ServeGen's own generator draws both from one number, and so pairs them perfectly.
Of a multimodal pool a prompt is its text and its images, audio and video: so many of each, and of so many tokens each.
Source: Xiang et al., ServeGen (arXiv 2505.09999), and alibaba/ServeGen @ f891d118, servegen/construct.py and
data/multimodal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from harness.errors import UsageError
from workloads._pool import Client, LengthHistogram

PROMPT, OUTPUT = ("input_tokens", "text_tokens"), "output_tokens"
"""The fields of a law: of text pools and of multimodal ones, and of both."""
MEDIA = ("image", "audio", "video")

_Law = tuple[np.ndarray, np.ndarray]  # cumulative probability, values
_NONE: _Law = (np.ones(1), np.zeros(1, np.int64))


class Drawn(NamedTuple):
    """(n,) tokens of prompts, media included, of outputs, and of the images of prompts (None: a pool of text)."""

    prompts: np.ndarray
    outputs: np.ndarray
    image_tokens: np.ndarray | None


class _Window(NamedTuple):
    """The laws of one window; `zero` is the largest probability of 0 tokens that is not drawn."""

    prompt: _Law
    output: _Law
    media: Mapping[str, tuple[_Law, _Law]]  # how many, and tokens of each
    zero: float


@dataclass(frozen=True, slots=True)
class TokenLaws:
    """Laws of prompt and output tokens by client and window, laid end to end: law k stands in (k, k + 1]."""

    starts_s: np.ndarray  # (windows,) of all clients together
    law: np.ndarray  # (clients, windows) index
    prompt: _Law  # k + cumulative probability, tokens
    output: _Law
    left_out: float  # largest probability of 0 tokens that a law had; such requests are not drawn
    media: Mapping[str, tuple[_Law, _Law]]

    @classmethod
    def of(cls, clients: Sequence[Client]) -> TokenLaws:
        """Those of the clients; a window without one has that of the nearest window before, in turn.

        Raises UsageError where a client has none.
        """
        starts = sorted({w.start_s for client in clients for w in client.lengths})
        laws: list[_Window] = []
        index = np.zeros((len(clients), max(1, len(starts))), int)
        for i, client in enumerate(clients):
            known = _windows(client)
            if not known:
                raise UsageError(missing([client.number]))
            at = np.searchsorted(sorted(known), starts, side="right") - 1  # -1 is the last: the window before, in turn
            index[i] = len(laws) + np.where(at < 0, len(known) - 1, at)
            laws += [known[start] for start in sorted(known)]
        present = [name for name in MEDIA if any(name in w.media for w in laws)]
        media = {
            name: (
                _end_to_end([w.media.get(name, (_NONE, _NONE))[0] for w in laws]),
                _end_to_end([w.media.get(name, (_NONE, _NONE))[1] for w in laws]),
            )
            for name in present
        }
        prompt, output = _end_to_end([w.prompt for w in laws]), _end_to_end([w.output for w in laws])
        return cls(np.array(starts), index, prompt, output, max(w.zero for w in laws), media)

    def of_requests(self, client: np.ndarray, pool_time_s: np.ndarray) -> np.ndarray:
        """(n,) law of requests of `client` (index) at this time of the pool."""
        window = np.searchsorted(self.starts_s, pool_time_s, side="right") - 1  # -1 is the last: before the first
        return np.asarray(self.law[client, window])

    def draw(self, law: np.ndarray, rng: np.random.Generator) -> Drawn:
        """The tokens of requests with these laws (n,)."""
        uniforms = rng.random((2, len(law)))
        prompts, outputs = (_values(side, law, u) for side, u in zip((self.prompt, self.output), uniforms, strict=True))
        images = np.zeros(len(law), np.int64) if self.media else None
        for name, (count, tokens) in self.media.items():
            how_many = _values(count, law, rng.random(len(law)))
            owner = np.repeat(np.arange(len(law)), how_many)
            item_tokens = _values(tokens, law[owner], rng.random(len(owner)))
            sums = np.bincount(owner, item_tokens, minlength=len(law)).astype(np.int64)
            prompts = prompts + sums
            if name == "image":
                images = sums
        return Drawn(prompts, outputs, images)


def counted(client: Client) -> bool:
    """Whether any window of a client tells how many tokens its requests have."""
    return bool(_windows(client))


def missing(numbers: Sequence[int]) -> str:
    """The error message for clients without token counts."""
    first = numbers[0]
    return (
        f"ServeGen client {first} has no token counts above 0 (chunk-{first}-dataset.json); "
        "fetch them from the pool's source, or take another pool."
    )


def _windows(client: Client) -> dict[float, _Window]:
    """The windows of a client that have laws for prompt and output, by start; one of zeros alone is none."""
    windows = {}
    for window in client.lengths:
        prompt = next((window.fields[name] for name in PROMPT if name in window.fields), None)
        if prompt is None or OUTPUT not in window.fields:
            continue
        media = {
            name: (_law(client, window.fields[f"{name}_count"]), _positive(client, window.fields[f"{name}_tokens"]))
            for name in MEDIA
            if f"{name}_count" in window.fields and f"{name}_tokens" in window.fields
        }
        media = {name: laws for name, laws in media.items() if laws[0][1].any() and laws[1][1].any()}
        output = _positive(client, window.fields[OUTPUT])
        # where every prompt has an image, audio or video, it need not have text
        always = any(count[1][0] >= 1 for count, _ in media.values())
        text = _law(client, prompt) if always else _positive(client, prompt)
        if not output[1].any() or not (always or text[1].any()):
            continue
        zero = max(_zero(window.fields[OUTPUT]), 0.0 if always else _zero(prompt))
        windows[window.start_s] = _Window(text, output, media, zero)
    return windows


def _law(client: Client, given: LengthHistogram) -> _Law:
    """The whole numbers that have a probability, and these cumulated."""
    if np.any(given.values % 1):
        raise UsageError(f"ServeGen client {client.number}: token counts must be whole numbers.")
    possible = given.probabilities > 0
    cumulative = np.cumsum(given.probabilities[possible])
    return cumulative / cumulative[-1], given.values[possible].astype(np.int64)


def _positive(client: Client, given: LengthHistogram) -> _Law:
    """The same without the 0; the law of nothing where there is nothing else."""
    possible = (given.values >= 1) & (given.probabilities > 0)
    if not possible.any():
        return _NONE
    return _law(client, LengthHistogram(given.values[possible], given.probabilities[possible]))


def _zero(given: LengthHistogram) -> float:
    return float(given.probabilities[given.values < 1].sum())


def _values(law: _Law, numbers: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
    """(n,) draws of the laws with these numbers."""
    edges, values = law
    return np.asarray(values[np.searchsorted(edges, numbers + uniforms, side="right")])


def _end_to_end(laws: Sequence[_Law]) -> _Law:
    edges = np.concatenate([k + cumulative for k, (cumulative, _) in enumerate(laws)])
    return edges, np.concatenate([values for _, values in laws])
