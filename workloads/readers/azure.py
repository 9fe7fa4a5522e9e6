"""Azure LLM inference traces of 2023, 2024 and LMM 2025 (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from harness.bounds import Checked
from workloads.readers._cells import SECOND_NS, BlockTokens
from workloads.readers._collect import Block
from workloads.readers._requests import Marked, Requests, empty

IMAGES = "NumImages"


@dataclass(frozen=True, slots=True)
class Azure(Checked):
    """Stamps are dates to 100 ns (2023, no time zone) or to 1 us with an offset (2024); counts are tokens.

    Source: Azure/AzurePublicDataset, CC-BY-4.0 (Patel et al., Splitwise, ISCA 2024). Line ends may be CRLF and the
    last one may be missing. The tokenizer is not published. The multimodal trace (2025; Qiu et al., ModServe, SoCC
    2025) tells how many images a request has: column `images`, and as the tag `image` or `text`. Its ContextTokens are
    text and images together; how many an image is depends on the model and is not published. With `image_tokens` each
    counts for so many of them, at most all.
    """

    image_tokens: BlockTokens | None = None

    form: ClassVar[str] = "csv"
    needs: ClassVar[tuple[str, ...]] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    stamp: ClassVar[str] = "TIMESTAMP"
    block_tokens: ClassVar[int] = 512
    facts: ClassVar[Mapping[str, str]] = {"tokenizer": "not published", "stamps": "100 ns (2023) or 1 us (2024)"}

    def requests(self, block: Block) -> Requests:
        """Every row; a row without prompt or output tokens is reported as dropped."""
        stamp, prompt, output = self.needs
        at_ns = block.stamps_ns(stamp)
        prompt_tokens, output_tokens = block.tokens(prompt), block.tokens(output)
        images = block.tokens(IMAGES) if block.has(IMAGES) else None
        more = {} if images is None else {"images": pa.array(images)}
        notes: Marked = ()
        if images is not None and self.image_tokens is not None:
            of_images = images * self.image_tokens
            more["image_tokens"] = pa.array(np.minimum(of_images, prompt_tokens))
            cut = f"images have more tokens than the prompt at {self.image_tokens} each, and are counted as all of it"
            notes = ((cut, of_images > prompt_tokens),)
        return Requests(
            stamp,
            at_ns,
            SECOND_NS,
            prompt_tokens,
            output_tokens,
            dated=True,
            drops=empty(prompt, prompt_tokens, output, output_tokens),
            notes=notes,
            more=more,
            tag=None if images is None else pa.array(np.where(images > 0, "image", "text"), pa.string()),
        )
