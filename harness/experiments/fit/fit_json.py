"""The answer of `bench fit` as a type: constants with their intervals, and errors on rows that the fit did not see."""

from typing import Literal

from msgspec import field

from harness.data.codec import Count, Document, Facts, Number, Part, Share, Text


class Score(Part, frozen=True):
    """Relative errors over rows of one kind: mean and P90 without sign, and that of the summed time."""

    kind: str
    rows: Count
    mean: Number
    p90: Number
    bias: Number


class Constant(Part, frozen=True):
    """A constant with half the width of its 95% interval: None where it was given, or where it is unknown."""

    name: str
    value: Number
    plus_minus: Number | None
    given: bool


class FitAnswer(Document, frozen=True, kw_only=True):
    """What `bench fit` prints; `file` is the text of the latency model, `out` where it is stored.

    `kv_tokens` is the KV memory of a replica, None where the requests do not tell it (or it was not searched);
    `kv_under_way` are the tokens that were under way on one at once, where it was.
    """

    schema: int = 1
    kind: Literal["fit"] = "fit"
    versions: Facts
    exit_code: int = 0
    what: str
    sources: list[str] = field(name="from")
    latency: str
    system: Facts
    seed: int
    holdout: Share
    rows: Count
    left_out_rows: Count
    seen_rows: Count
    unseen_rows: Count
    constants: list[Constant]
    points: dict[str, list[list[Number]]]
    left_out: dict[str, str]
    seen: list[Score]
    unseen: list[Score]
    out: Text
    file: str
    kv_tokens: Count | None = None
    kv_under_way: Count | None = None
