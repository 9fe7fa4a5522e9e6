"""Memory for exactly the prompt and the output, reserved at admission (an oracle).

Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Oracle)).
"""

from dataclasses import dataclass

from backends.serving._checks import at_least, next_power_of_two


@dataclass(frozen=True, slots=True)
class ReserveOracle:
    """Reserves what will be used; it must know the output, so results with it are oracle results.

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
        """Prompt plus output."""
        return next_power_of_two(prompt + output) if self.buddy else prompt + output

    def refusal(self, prompt: int, output: int) -> str | None:  # noqa: ARG002  refuses no length by itself
        """None: only the size of the memory limits a request."""
        return None
