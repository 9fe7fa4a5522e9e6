"""The end of an answer is found at its last byte, however the network cuts it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.client.framing import BadFraming, Framing, says_done
from backends.client.reads import LATER, LOOK, Reads, is_chunk

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(chunks: list[bytes], end: bytes = b"0\r\n\r\n") -> bytes:
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + end


def cut(data: bytes, places: list[int]) -> list[bytes]:
    at = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


def lazily(reads: list[bytes]) -> tuple[Framing, int | None]:
    """As a connection asks: every read until the head is whole, then only those that may hold the end."""
    framing, kept = Framing(), list[bytes]()
    answer = Reads(None, -1, kept, 0.0, 1 << 30)
    for k, data in enumerate(reads):
        if answer.keep(data, 1.0, 1.0) == LOOK:
            if framing.take(kept, answer.whole):
                return framing, k
            answer.quiet, answer.between = framing.quiet, framing.between
            answer.whole = answer.unlooked = 0
    return framing, None


bodies = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"data: {}\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"data: [DONE]\n\n", b"\r\n0\r\n\r\n"]),
    ),
    max_size=8,
)
ends = st.sampled_from([b"0\r\n\r\n", b"000\r\n\r\n", b"0;a=b\r\n\r\n", b"0\r\nTrailer: 1\r\n\r\n"])


@given(bodies, ends, st.lists(st.integers(0, 10_000), max_size=12))
def test_a_chunked_answer_ends_with_its_last_byte_and_frees_its_connection(
    chunks: list[bytes], end: bytes, places: list[int]
) -> None:
    """A connection would be reused in the middle of an answer, or wait for ever after its end."""
    reads = cut(chunked(chunks, end), places)

    framing, at = lazily(reads)

    assert (len(reads) - 1, True, 200) == (at, framing.keep, framing.status)


@given(bodies, st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, 5))
def test_a_chunked_answer_that_is_cut_short_has_no_end(chunks: list[bytes], places: list[int], missing: int) -> None:
    """A truncated stream would pass for a whole one."""
    framing, at = lazily(cut(chunked(chunks)[:-missing], places))

    assert at is None and not framing.done


@given(st.binary(max_size=60), st.lists(st.integers(0, 10_000), max_size=8))
def test_an_answer_of_a_known_length_ends_with_it(body: bytes, places: list[int]) -> None:
    """A plain answer would hold its connection until the server closes it."""
    reads = cut(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body, places)

    framing, at = lazily(reads)

    assert (len(reads) - 1, True) == (at, framing.keep)


@pytest.mark.parametrize(
    ("head", "body", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", b"ab", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n", b"ab", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n", b"ab", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ab", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"abc", False),
        (CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 9\r\n\r\n"), b"2\r\nab\r\n0\r\n\r\n", False),
        (CHUNKED, b"02 ;a=b\r\nab\r\n0\n\n", True),
        (CHUNKED, b"2\r\nab\r\n0\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n", False),
    ],
)
def test_a_connection_is_reused_only_after_an_answer_that_leaves_it_open_and_empty(
    head: bytes, body: bytes, keep: bool
) -> None:
    """The next request would be written to a connection that the server is closing, or read another's bytes."""
    framing = Framing()

    assert framing.take([head + body])
    assert keep == framing.keep


def test_an_answer_without_a_length_ends_with_done_or_with_the_connection() -> None:
    """A stream of events that the server forgets to close would hold its request until the time limit."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    framing = Framing()

    assert not framing.take([head, b'data: {"text": "data: [DONE]'])
    assert framing.take([head, b'data: {"text": "data: [DONE]', b'"}\n\ndata: [DONE]\n\n'])
    assert not framing.keep


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n",
        CHUNKED.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"),
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\nabcde\r\n",
        CHUNKED + b"1_0\r\n" + b"a" * 16,
    ],
)
def test_an_answer_that_is_not_http_is_reported(data: bytes) -> None:
    """A server of another kind would leave the client waiting for an end that never comes."""
    with pytest.raises(BadFraming):
        Framing().take([data])


def test_reads_of_a_long_answer_are_looked_at_a_few_at_a_time() -> None:
    """The end of a long answer would make the client walk through all of it at once, and all others would wait."""
    kept: list[bytes] = []
    answer = Reads(None, -1, kept, 0.0, 1 << 30)
    answer.quiet = True
    waiting = []
    for _ in range(3 * LATER):
        if answer.keep(b"3\r\na\n\n\r\n", 1.0, 1.0) == LOOK:
            waiting.append(len(kept))
            answer.unlooked = 0

    assert [LATER, 2 * LATER, 3 * LATER] == waiting


@pytest.mark.parametrize(
    ("data", "done"),
    [
        (b'{"a": 1}\n\ndata: [DONE]\n\n', True),
        (b"data: [DONE]", True),
        (b"x\r\n\r\ndata:[DONE]\r\n\r\n", True),
        (b'{"text": "say data: [DONE]', False),
        (b"data: [DONE", False),
    ],
)
def test_done_is_a_line_of_its_own(data: bytes, done: bool) -> None:
    """A model that writes about the format of its answers would end them."""
    assert done == says_done(data)


@pytest.mark.parametrize(
    "data", [b"0\r\n\r\n", b"1_0\r\n" + b"x" * 16 + b"\r\n", b"+1\r\nx\r\n", b"5\r\nabc\r\n", b"g\r\nx\r\n"]
)
def test_only_a_whole_chunk_is_passed_over(data):
    """The end of an answer, or nonsense, would be skipped with the many reads that need no look."""
    assert not is_chunk(data)
    assert is_chunk(b"1a\r\n" + b"x" * 26 + b"\r\n")
