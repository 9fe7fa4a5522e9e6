"""Chance without random numbers: SplitMix64, a hash of counters (Steele, Lea, Flood, OOPSLA 2014)."""

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio
_WORD = (1 << 64) - 1


def draw(seed: int, number: int) -> int:
    """Draw number `number` of the stream `seed`: an integer of 64 bits."""
    return _mix(_mix(seed) + number * _GOLDEN)


def unit(seed: int, number: int) -> float:
    """The same draw as a number in [0, 1)."""
    return (draw(seed, number) >> 11) / (1 << 53)


def _mix(z: int) -> int:
    z &= _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)
