"""Server-sent events as servers write them, legal and nearly legal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.client.framing import Event, events


def data(body: bytes) -> list[bytes]:
    return [event.data for event in events(body)]


@pytest.mark.parametrize("eol", [b"\n", b"\r\n", b"\r"])
def test_events_end_with_an_empty_line_whatever_ends_a_line(eol: bytes) -> None:
    """Tokens of a server with other line ends would be joined or lost."""
    assert [b"a", b"b"] == data(b"data: a" + eol + eol + b"data:b" + eol + eol)


def test_line_ends_may_be_mixed() -> None:
    """A proxy that adds events of its own would hide the server's."""
    assert [b"a", b"b", b"c", b"d"] == data(b"data: a\n\r\ndata: b\r\n\ndata: c\r\rdata: d\r\n\r\n")


def test_only_one_space_after_the_colon_belongs_to_the_field() -> None:
    """A text that begins with a space would lose it."""
    assert [b" a", b"a", b"a "] == data(b"data:  a\n\ndata:a\n\ndata: a \n\n")


def test_several_data_lines_are_joined_by_line_feeds() -> None:
    """JSON printed over several lines would not be read."""
    assert [b'{"a":\n1}'] == data(b'data: {"a":\r\ndata: 1}\r\n\r\n')


def test_comments_ids_and_retry_times_carry_nothing() -> None:
    """A ping would count as a token."""
    assert [b"a"] == data(b": ping\n\nid: 3\nretry: 10\n\n:\ndata: a\n: inside\n\n: ping\n\n")


def test_the_name_of_an_event_is_kept() -> None:
    """An error that is named only by its event would pass for an answer."""
    assert [b"error", None, None] == [
        e.name for e in events(b"event: error\ndata: x\n\nevent: message\ndata: y\n\ndata: z\n\n")
    ]


def test_unicode_separators_do_not_end_a_line() -> None:
    """A text that holds U+2028 would be cut in two."""
    text = "data: a\u2028b\u2029c\u0085d\x0b\x0ce\n\n".encode()

    assert ["a\u2028b\u2029c\u0085d\x0b\x0ce"] == [d.decode() for d in data(text)]


@pytest.mark.parametrize("tail", [b"data: b", b"data: b\n", b"data: b\r\n", b"data: b\r"])
def test_the_last_event_may_end_with_the_body(tail: bytes) -> None:
    """The finish reason or the usage of a server that stops writing at once would be lost."""
    assert [Event(b"b", 9 + len(tail), None, False)] == list(events(b"data: a\n\n" + tail))[1:]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """The first token of some servers would be lost."""
    assert [b"a"] == data(b"\xef\xbb\xbfdata: a\n\n")


def test_an_event_is_complete_with_the_last_byte_of_its_empty_line() -> None:
    """Stamps would be those of another read."""
    assert [9, 21, 32] == [e.end for e in events(b"data: a\n\n: x\ndata:b\n\ndata: c\r\n\r\n")]
    assert [11, 22] == [e.end for e in events(b"data: a\r\n\r\ndata: b\r\n\r\n")]


def test_empty_bodies_have_no_events() -> None:
    """A rejected request would have tokens."""
    assert [] == data(b"") == data(b"\n\n\n") == data(b"event: x\n\n") == data(b": x")


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
EOLS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    """A legal stream and the texts that its events carry."""
    uniform = draw(st.none() | EOLS)
    eols = EOLS if uniform is None else st.just(uniform)
    body, texts = "", draw(st.lists(TEXTS, max_size=6))
    for text in texts:
        for extra in draw(st.lists(st.sampled_from([": ping", "id: 1", "retry: 5", "event: message"]), max_size=2)):
            body += extra + draw(eols)
        payload = json.dumps({"t": text}, ensure_ascii=draw(st.booleans()))
        body += f"data:{draw(st.sampled_from(['', ' ']))}{payload}{draw(eols)}"
        body += "\r" if body.endswith("\r") else draw(eols)  # CR and then LF would be one line end
    return body.encode(), texts


@given(streams())
def test_every_legal_stream_gives_its_texts(stream: tuple[bytes, list[str]]) -> None:
    """Some token of some server would be lost or invented."""
    body, texts = stream

    assert texts == [json.loads(d)["t"] for d in data(body)]


@given(st.binary(max_size=60) | st.text("dat: \r\n{}x", max_size=60).map(str.encode))
def test_nothing_can_make_it_fail(body: bytes) -> None:
    """A broken server would end a run."""
    ends = [event.end for event in events(body)]

    assert ends == sorted(ends) and all(0 < end <= len(body) for end in ends)
