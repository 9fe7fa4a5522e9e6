"""Paged KV memory: blocks on demand, so a sequence wastes less than one block.

Source: Kwon et al., vLLM, SOSP 2023; block of 16 tokens and watermark of 1 % as in vLLM.
"""

from dataclasses import dataclass

from backends.serving._checks import at_least


@dataclass(frozen=True, slots=True)
class Paged:
    """`block_tokens` tokens a block; admission leaves `watermark` of all blocks free; `blocks` overrides the size."""

    block_tokens: int = 16
    watermark: float = 0.01
    blocks: int | None = None

    def __post_init__(self) -> None:
        at_least("block_tokens", self.block_tokens)
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be a share in [0, 1), got {self.watermark}")
        at_least("blocks", self.blocks)

    @property
    def reserves(self) -> bool:
        """False: memory comes on demand."""
        return False

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Never asked: nothing is reserved; what would be stored at the end."""
        return prompt + output - 1

    def refusal(self, prompt: int, output: int) -> str | None:  # noqa: ARG002  paging refuses no length by itself
        """None: only the size of the memory limits a request."""
        return None
