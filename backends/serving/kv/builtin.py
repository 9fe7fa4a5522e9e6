"""How KV memory is given out: the short modes, a class each."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from backends.serving._checks import next_power_of_two
from harness.bounds import AtLeastOne, AtLeastTwo, Checked


@dataclass(frozen=True, slots=True)
class Paged(Checked):
    """Paged KV memory: blocks on demand, so a sequence wastes less than one block.

    Source: Kwon et al., vLLM, SOSP 2023; block of 16 tokens and watermark of 1 % as in vLLM.

    `block_tokens` tokens a block; admission leaves `watermark` of all blocks free; `blocks` overrides the size.
    """

    block_tokens: AtLeastOne = 16
    watermark: Annotated[float, Meta(ge=0, lt=1)] = 0.01
    blocks: AtLeastOne | None = None


@dataclass(frozen=True, slots=True)
class ReserveMax(Checked):
    """Memory for the longest possible sequence, reserved at admission.

    Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Max)).

    Every sequence reserves `max_tokens` tokens, used or not.
    """

    max_tokens: AtLeastTwo = 2048
    block_tokens: AtLeastOne = 16
    blocks: AtLeastOne | None = None

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


@dataclass(frozen=True, slots=True)
class ReserveOracle(Checked):
    """Memory for exactly the prompt and the output, reserved at admission (an oracle).

    Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Oracle)).

    Reserves what will be used; it must know the output, so results with it are oracle results.

    `buddy` gives memory out in powers of two, as the allocator of contiguous memory in vLLM's comparison does.
    """

    block_tokens: AtLeastOne = 16
    blocks: AtLeastOne | None = None
    buddy: bool = False

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


@dataclass(frozen=True, slots=True)
class ReservePow2(ReserveOracle):
    """Memory for the prompt and the output rounded up to a power of two, reserved at admission (an oracle).

    Source: Yu et al., Orca, OSDI 2022, as compared in Kwon et al., vLLM, SOSP 2023 (Orca (Pow2)).

    Reserves at most twice the true output; it must know the output, so results with it are oracle results.

    `buddy` gives memory out in powers of two, as the allocator of contiguous memory in vLLM's comparison does.
    """

    def reserved_tokens(self, prompt: int, output: int) -> int:
        """Prompt plus the power of two that holds the output."""
        tokens = prompt + next_power_of_two(output)
        return next_power_of_two(tokens) if self.buddy else tokens
