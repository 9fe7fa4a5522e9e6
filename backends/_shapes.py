"""Parts of a transformer beyond the plain one: experts of which a token meets a few, and latent keys and values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward of `routed` gated experts of width `ffn`, of which each token meets `per_token`.

    `shared` experts of the same width meet every token; the first `dense_layers` layers have the plain feed-forward.
    `biased`: the gate has a bias per expert.
    """

    routed: int
    per_token: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    biased: bool = False

    def hit(self, tokens: int) -> float:
        """Mean number of routed experts that `tokens` tokens meet, each choosing without preference."""
        return self.routed * (1 - (1 - self.per_token / self.routed) ** tokens)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: per token and layer `rank` + `rope` elements are kept for all heads together.

    A head has `nope` + `rope` elements of query and key and `value` elements of value; `query_rank` is the width of the
    compressed query. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int

    @property
    def kept(self) -> int:
        """Elements kept per token and layer."""
        return self.rank + self.rope

    def repeated(self, hidden: int) -> int:
        """Parameters of the matrices that every GPU of a tensor-parallel group holds: both compressions."""
        return hidden * (self.query_rank + self.kept)

    def divided(self, hidden: int, heads: int) -> int:
        """Parameters of the matrices that are divided by heads: both expansions and the output."""
        queries = self.query_rank * heads * (self.nope + self.rope)
        return queries + self.rank * heads * (self.nope + self.value) + heads * self.value * hidden

    @property
    def vector(self) -> int:
        """Parameters of the norms of both compressions."""
        return self.query_rank + self.rank
