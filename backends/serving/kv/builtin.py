"""How KV memory is given out: the short modes, a class each."""

from dataclasses import dataclass

from harness.bounds import AtLeastOne, AtLeastTwo, Checked, PartialShare


@dataclass(frozen=True, slots=True)
class Paged(Checked):
    """Paged KV memory: blocks on demand, so a sequence wastes less than one block.

    Source: Kwon et al., vLLM, SOSP 2023; block of 16 tokens and watermark of 1 % as in vLLM.

    `block_tokens` tokens a block; admission leaves `watermark` of all blocks free; `blocks` overrides the size.
    """

    block_tokens: AtLeastOne = 16
    watermark: PartialShare = 0.01
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
