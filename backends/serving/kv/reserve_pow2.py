"""Memory for the prompt and the output rounded up to a power of two, reserved at admission (an oracle).

Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Pow2)).
"""

from dataclasses import dataclass

from backends.serving._checks import at_least, next_power_of_two


@dataclass(frozen=True, slots=True)
class ReservePow2:
    """Reserves at most twice the true output; it must know the output, so results with it are oracle results.

    `buddy` gives memory out in powers of two, as the allocator of contiguous memory in vLLM's comparison does.
    """

    block_tokens: int = 16
    blocks: int | None = None
    buddy: bool = False

    def __post_init__(self) -> None:
        at_least("block_tokens", self.block_tokens)
        at_least("blocks", self.blocks)

    @property
    def watermark(self) -> float:
        """0: what is reserved cannot run short."""
        return 0.0

    @property
    def reserves(self) -> bool:
        """True: all memory at admission."""
        return True

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Prompt plus the power of two that holds the output."""
        tokens = prompt + next_power_of_two(output)
        return next_power_of_two(tokens) if self.buddy else tokens

    def refusal(self, prompt: int, output: int) -> str | None:  # noqa: ARG002  refuses no length by itself
        """None: only the size of the memory limits a request."""
        return None
