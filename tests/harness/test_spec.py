"""The grammar of every option: what is taken, and the sentence for what is not."""

import math
from dataclasses import dataclass, field
from typing import Literal

import pytest

from harness.errors import UsageError
from harness.spec import build, parse, seconds, size_bytes, text_of


@dataclass(frozen=True)
class Thing:
    name: str = "x"
    wait_s: float = 1.0
    memory_bytes: int = 0
    count: int | None = None
    share: float = 0.5
    on: bool = False
    kind: Literal["old", "new"] = "old"

    def __post_init__(self) -> None:
        if self.share > 1:
            raise ValueError(f"share must be at most 1, got {self.share:g}")


@dataclass(frozen=True)
class Needy:
    path: str
    made: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bare:
    pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("thing", Thing()),
        ("thing:y", Thing("y")),
        ("thing:http://host:1/?a=b", Thing("http://host:1/?a=b")),
        ("thing:y,wait=250ms,memory=2GiB", Thing("y", 0.25, 2**31)),
        ("thing:name=sarathi:budget=9", Thing("sarathi:budget=9")),
        ("thing:count=none,on=yes,kind=new", Thing(count=None, on=True, kind="new")),
        ("thing:count=3,on=0,share=.25", Thing(count=3, on=False, share=0.25)),
    ],
)
def test_a_spec_becomes_an_object_and_text_again(text: str, expected: Thing) -> None:
    """An option would mean something else than it says, and run.json would not repeat the run."""
    assert expected == build(Thing, parse(text))
    assert expected == build(Thing, parse(text_of(expected, "thing")))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (":a=1", "the name is missing"),
        ("thing:", "nothing follows the colon; write 'thing'"),
        ("thing:,on=yes", "an argument is empty"),
        ("thing:y,z", "'z' is not key=value"),
        ("thing:on=yes,on=no", "on is given twice"),
        ("thing:y,name=z", "name is given twice"),
        ("thing:count", "count has no value; write 'thing:count=...'"),
        ("thing:wait", "wait has no value; write 'thing:wait=...'"),
        ("thing:wiat=3", "Did you mean 'wait_s'?"),
        ("thing:wait=soon", "wait_s must be a duration such as"),
        ("thing:wait=1e999", "wait_s must be a duration such as"),
        ("thing:memory=lots", "memory_bytes must be a size such as 24GB or 80GiB"),
        ("thing:count=2.5", "count must be a whole number, got '2.5'"),
        ("thing:share=half", "share must be a finite number, got 'half'"),
        ("thing:share=inf", "share must be a finite number"),
        ("thing:share=2", "share must be at most 1, got 2"),
        ("thing:on=perhaps", "on must be true or false, got 'perhaps'"),
        ("thing:kind=nwe", "kind must be one of old, new, got 'nwe'. Did you mean 'new'?"),
    ],
)
def test_a_wrong_spec_gets_a_sentence(text: str, sentence: str) -> None:
    """A typing error would run with a default, or end in a traceback."""
    with pytest.raises(UsageError) as caught:
        build(Thing, parse(text))

    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "text", "sentence"),
    [
        (Needy, "needy", "path must be given, e.g. 'needy:path=...'"),
        (Bare, "bare:x", "bare takes no arguments"),
        (Bare, "bare:x=1", "bare takes no arguments"),
    ],
)
def test_a_missing_or_unknown_argument_is_named(cls: type, text: str, sentence: str) -> None:
    """A plug-in that needs a file would fail somewhere inside."""
    with pytest.raises(UsageError, match=sentence.replace("...", ".*")):
        build(cls, parse(text))


def test_units_of_time_and_memory() -> None:
    """A bound of 250 ms would be one of 250 s."""
    assert [0.25, 90.0, 300.0, 3600.0, 2.0, 1e-6] == [seconds(t) for t in ("250ms", "90", "5min", "1h", "2 s", "1us")]
    assert [24e9, 80 * 2.0**30, 7.0] == [size_bytes(t) for t in ("24GB", "80GiB", "7")]
    assert math.isclose(-1.0, seconds("-1"))


@pytest.mark.parametrize(
    ("text", "args", "first"),
    [
        ("sim:kv=[paged:1,blocks=900],preempt=swap", {"kv": "paged:1,blocks=900", "preempt": "swap"}, None),
        ("sim:preempt=swap,lora=[slots=8,rank=16]", {"preempt": "swap", "lora": "slots=8,rank=16"}, None),
        ("openai:url=http://[::1]:8000,model=m", {"url": "http://[::1]:8000", "model": "m"}, None),
        ("openai:http://[::1]:8000/v1,model=m", {"model": "m"}, "http://[::1]:8000/v1"),
        ("engine:[a,b],kv=[paged]", {"kv": "paged"}, "a,b"),
    ],
)  # fmt: skip
def test_brackets_hold_a_value_with_commas_together(text: str, args: dict[str, str], first: str | None) -> None:
    """A memory mode with two arguments could not be named within the backend."""
    found = parse(text)

    assert (args, first) == (found.args, found.first)
    assert found == parse(str(found))
