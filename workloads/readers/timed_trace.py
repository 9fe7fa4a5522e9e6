"""vLLM's timed traces (JSON lines: timestamp, input_length, output_length, perhaps hash_ids)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.bounds import Checked
from workloads.readers._cells import BlockTokens
from workloads.readers._collect import Block
from workloads.readers._requests import Requests
from workloads.readers.chat_log import PER_S, Unit
from workloads.readers.mooncake import rows_of


@dataclass(frozen=True, slots=True)
class TimedTrace(Checked):
    """Stamps in `unit` (s, ms or us), counts in tokens; `hash_ids`, where there, name blocks of `block_tokens` tokens.

    Source of the format: vllm-project/vllm PR 39795, `vllm bench serve` with a timed trace, which reads Mooncake's rows
    (ms, 512) and Bailian's (s, 16) alike. The file states neither unit nor block size: milliseconds are assumed, and
    blocks of 16 tokens, in which the turns of a session share their prompts where there are no `hash_ids`.
    """

    unit: Unit = "ms"
    block_tokens: BlockTokens = 16

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("timestamp", "input_length", "output_length")
    stamp: ClassVar[str] = "timestamp"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "not stated by the file",
        "stamps": "unit of the reader option, milliseconds by default (--reader timed-trace:unit=s for seconds)",
    }

    def requests(self, block: Block) -> Requests:
        """As those of Mooncake."""
        return rows_of(block, PER_S[self.unit], self.block_tokens)
