"""Names for the blocks of a prompt whose tokens are known: equal tokens, equal names."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b


def block_names(token_ids: Sequence[int], size: int) -> tuple[int, ...]:
    """One `prefix_id` of 63 bits per full block of `size` tokens, made of the tokens in it."""
    tokens = array("q", token_ids).tobytes()
    width = 8 * size
    ends = range(width, len(tokens) + 1, width)
    digests = [blake2b(tokens[end - width : end], digest_size=8).digest() for end in ends]
    return tuple([int.from_bytes(digest, "little") >> 1 for digest in digests])
