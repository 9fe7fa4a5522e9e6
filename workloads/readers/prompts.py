"""Prompts, one a line (JSON lines with `prompt`), as custom data sets of vLLM and others have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workloads.readers import _texts
from workloads.readers._collect import Block
from workloads.readers._requests import Requests
from workloads.readers.messages import Messages, recorded


@dataclass(frozen=True, slots=True)
class Prompts(Messages):
    """One request a line: its `prompt`, a text; perhaps `output_tokens`, `max_tokens`, `timestamp` and `session_id`.

    An answer has as many tokens as the line tells, else `output_tokens` of the reader. `--content recorded` sends the
    prompt to the completions API. The rest is as in the reader `messages`. Source of the format: docs.vllm.ai, custom
    data sets of `vllm bench serve`.
    """

    needs: ClassVar[tuple[str, ...]] = ("prompt",)
    stamp: ClassVar[str] = "prompt"

    @staticmethod
    def body(row: Mapping[str, Any], number: int) -> dict[str, object]:  # noqa: ARG004  # a row is one request
        """The prompt of a row, and the fields beside it."""
        return {"prompt": row["prompt"], **_texts.passed(row)}

    def requests(self, block: Block) -> Requests:
        """Every row; one of which nothing tells how long its answer is, is reported as dropped."""
        return recorded(self, block, "prompts", self.encode)
