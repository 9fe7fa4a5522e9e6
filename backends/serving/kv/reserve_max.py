"""Memory for the longest possible sequence, reserved at admission.

Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Max)).
"""

from dataclasses import dataclass

from backends.serving._checks import at_least


@dataclass(frozen=True, slots=True)
class ReserveMax:
    """Every sequence reserves `max_tokens` tokens, whatever it will use."""

    max_tokens: int = 2048
    block_tokens: int = 16
    blocks: int | None = None

    def __post_init__(self) -> None:
        at_least("max_tokens", self.max_tokens, 2)
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

    def reserved_tokens(self, prompt: int, output: int) -> int:  # noqa: ARG002  the same for all
        """Always `max_tokens`."""
        return self.max_tokens

    def refusal(self, prompt: int, output: int) -> str | None:
        """A prompt and output of more than `max_tokens` tokens never fit."""
        if prompt + output > self.max_tokens:
            return f"prompt and output of {prompt + output} tokens exceed the reservation of {self.max_tokens}"
        return None
