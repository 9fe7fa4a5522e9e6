"""The prompts of a trace as they were recorded: messages, tools and sampling fields, for servers of OpenAI's API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.api import Request
from workloads.content.text import Text
from workloads.content.tokens import Tokens
from workloads.readers._texts import Prompts


@dataclass(frozen=True, slots=True)
class Recorded:
    """The requests of the rows of `--trace`, read from the file request by request: memory does not grow with the text.

    The trace must hold text: `bench list readers` names messages, otel and sharegpt. The body
    of a request has `messages` (or the text of the prompt) and the fields that stand beside it, such as tools,
    response_format, temperature and stop, unchanged; options of the run win. The run decides `model`, streaming, and
    the largest number of tokens, which is that of the recorded answer. Nothing is put before a prompt, so a prefix
    cache that an earlier run has filled helps. Tokens are those that the server counts (usage); the schedule has the
    counts of the reader's tokenizer, or an estimate.

    The simulator and the engine take token ids, which are those of `tokens`, drawn from `seed`: prompts share what the
    trace shares. Source: the trace.
    """

    seed: int = 0
    prompts: Prompts | None = field(init=False, repr=False, compare=False, default=None)

    def of(self, prompts: Prompts) -> "Recorded":
        """The content of a workload whose request i has prompt i."""
        content = replace(self)
        object.__setattr__(content, "prompts", prompts)
        return content

    @property
    def facts(self) -> dict[str, object]:
        return {"content": "the recorded prompts, as they are", "counted_by": "the server"}

    def fields(self, request: Request) -> Mapping[str, object]:
        """The fields of the body of a request; a request of none of the rows (a probe) has a prompt of plain words."""
        if request.id < 0:
            return {"prompt": Text(seed=self.seed).text(request)}
        assert self.prompts is not None  # the loader of a trace has seen to it
        return self.prompts.body(request.id)

    def text(self, request: Request, opening: Sequence[int] = ()) -> str:  # noqa: ARG002  nothing opens it
        """The prompt as one text: the contents of its messages, one below the other."""
        fields = self.fields(request)
        messages = fields.get("messages")
        if not isinstance(messages, list):
            return str(fields.get("prompt", ""))
        return "\n\n".join(str(message.get("content")) for message in messages)

    def token_ids(self, request: Request, vocab_size: int) -> np.ndarray:
        """(T,) int64 in [0, vocab_size), T = request.prompt_tokens, for backends that take ids."""
        return Tokens(self.seed).token_ids(request, vocab_size)
