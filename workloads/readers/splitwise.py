"""The Azure 2023 traces as simulators pass them on (CSV: arrived_at, num_prefill_tokens, num_decode_tokens)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from workloads.readers._collect import Block
from workloads.readers._requests import Requests, empty


@dataclass(frozen=True, slots=True)
class Splitwise:
    """Stamps in seconds, counts in tokens.

    Source of the format: microsoft/vidur, `data/processed_traces/splitwise_*.csv`, made from the Azure 2023 traces.
    """

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
    stamp: ClassVar[str] = "arrived_at"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not published", "stamps": "seconds, as passed on by others"}

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        stamp, prompt, output = self.needs
        at_s = block.numbers(stamp)
        prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
        drops = empty(prompt, prompt_tokens, output, output_tokens)
        return Requests(stamp, at_s, 1, prompt_tokens, output_tokens, drops=drops)
