"""The text of one answer as its tokens come: whole characters only, and nothing of a stop text.

Frequent English words, our own choice: the built-in tokenizer has one token for each, as those of real models do.
"""

from collections.abc import Sequence

from backends.server.service import TextStream


class Words:
    """Holds back what may become a stop text, and cuts the answer before one. `stopped` tells that it has.

    A stop text that is there within the first `min_tokens` tokens ends nothing, as in vLLM.
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
        """The text that may be shown now."""
        self._made += len(token_ids)
        text = self._stream.add(token_ids)
        return self._cut(text) if self._stops else text

    def rest(self) -> str:
        """What was held, once no more tokens come."""
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
    """Length of the longest end of `text` that a stop text may go on from."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


_TEXT = """
the of and to in is that it for was on as with be by at he this are or his from have an they which not had one you
were all her she there would their we him been has when who will no more if out up so what about can said them into
some could then time only other its two than may any new my now these such like our me over man even most made after
also did many before must through back where much your way well down should because each just those people how too
little good very make world still see own work men day get here between both life being under never same another know
while last might us great old year off come since against go came right used take three himself few house use during
without again place around however home small found thought went say part once general high upon school every does got
united left number course war until always away something fact though water less public put think almost hand enough
far took head yet government system better set told nothing night end why called going look find asked later knew
point next city business give group toward young days let room word social present several order second national
possible rather face per among form important often things looked early white case large big need four within felt
along children saw best church ever least power development light thing seemed family interest want members mind
country area others done turned although open service certain kind different problem began door help means sense whole
matter name example please write answer question following list table text data value result model function code
language user story explain describe information provide first third using based given create include note error key
"""

COMMON = tuple(_TEXT.split())
