"""vAttention: KV memory that is contiguous for kernels and mapped page by page by the driver.

Source: Prabhu et al., vAttention, ASPLOS 2025; sizes of pages, what shares a page and the watermark of 1 % as in
microsoft/vattention. It claims up to 1.97 times the tokens a second of paged kernels.
"""

from dataclasses import dataclass
from typing import Literal

from harness.bounds import AtLeastOne, NotNegative, PartialShare, check


@dataclass(frozen=True, slots=True)
class VirtualKv:
    """Contiguous virtual KV memory with physical pages on demand: kernels see one array, and pages are large.

    A block here is a page group: a page for keys and one for values of every layer.

    Pages of `page_bytes`; keys (or values) of one token in one layer on one GPU take `token_bytes`.

    `token_bytes` follows from the model where a simulator or an engine builds it; the default is that of Llama-3-8B on
    one GPU. `layers` share a page where one tensor holds them all. Mapping a page group takes `map_s`: `ahead` of its
    use, beside the step before, so that a step pays only what exceeds that one, or in the step that needs it (`sync`).
    """

    page_bytes: AtLeastOne = 2 * 2**20
    token_bytes: AtLeastOne = 2048
    layers: AtLeastOne = 1
    mapping: Literal["ahead", "sync"] = "ahead"
    map_s: NotNegative = 0.0
    watermark: PartialShare = 0.01
    blocks: AtLeastOne | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.block_tokens < 1:
            room = self.token_bytes * self.layers
            raise ValueError(f"a page of {self.page_bytes} bytes holds no token of {room}; take larger pages")

    @property
    def block_tokens(self) -> int:
        """Tokens per page group."""
        return self.page_bytes // (self.token_bytes * self.layers)

    @property
    def step_map_s(self) -> float:
        """Seconds to map a page group."""
        return self.map_s

    @property
    def maps_ahead(self) -> bool:
        """Whether that happens beside the step before."""
        return self.mapping == "ahead"
