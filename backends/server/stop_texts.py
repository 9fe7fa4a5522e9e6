"""The text of one answer as its tokens arrive: whole characters only, cut before a stop text."""

from collections.abc import Sequence

from backends.server.service import TextStream


class AnswerText:
    """Holds back what may become a stop text, and cuts the answer before one; `stopped` is then True.

    A stop text within the first `min_tokens` tokens does not end the answer, as in vLLM.
    """

    __slots__ = ("_held", "_made", "_min_tokens", "_stops", "_stream", "stopped")

    def __init__(self, stream: TextStream, stops: Sequence[str], min_tokens: int = 0) -> None:
        self._stream = stream
        self._stops = stops
        self._min_tokens = min_tokens
        self._made = 0
        self._held = ""
        self.stopped = False

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that can be sent now."""
        self._made += len(token_ids)
        text = self._stream.add(token_ids)
        return self._cut(text) if self._stops else text

    def rest(self) -> str:
        """The text held back, after the last token."""
        text = self._stream.rest()
        if not self._stops:
            return text
        shown = self._cut(text)
        return shown if self.stopped else shown + self._held

    def _cut(self, new: str) -> str:
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found and self._made > self._min_tokens:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max(_begun(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _begun(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
