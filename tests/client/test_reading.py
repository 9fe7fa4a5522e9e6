"""What an answer says: tokens, stamps, how it ended."""

import json
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.client.connection import Answer, How
from backends.client.reading import Reader
from backends.client.secrets import Redaction
from backends.openai import OpenAI
from harness.api import Ended, Exchange, Extra, Request, TokenEvent

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(text: str | None = None, finish: str | None = None, **more: object) -> bytes:
    """An event of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice], **more})}\n\n".encode()


def used(tokens: int) -> dict[str, object]:
    return {"usage": {"prompt_tokens": 7, "completion_tokens": tokens}}


def answer(*reads: bytes, how: How = "closed", why: str | None = None, head: bytes = HEAD) -> Answer:
    """Read i arrives at i seconds and is read a quarter of a second later; the head is read 0."""
    data = [part for part in (head, *reads) if part]
    stamps = array("d", range(len(data)))
    return Answer(
        sent_s=-1.0, ended_s=99.0, how=how, why=why, data=data, stamp_s=stamps,
        read_s=array("d", (s + 0.25 for s in stamps)),
    )  # fmt: skip


def read(given: Answer, output_tokens: int = 4, stream: bool = True) -> tuple[list[TokenEvent], Ended, Exchange]:
    *events, ended = Reader(stream).read(given, Request(5, 0.0, 7, output_tokens))
    assert isinstance(ended, Ended) and ended.exchange is not None
    return [event for event in events if isinstance(event, TokenEvent)], ended, ended.exchange


def test_a_token_has_the_stamp_of_the_read_that_completed_its_event() -> None:
    """Latency would be that of a part of an event, or of the next one."""
    whole = chunk("b")
    tokens, ended, exchange = read(answer(chunk("a"), whole[:10], whole[10:-1], whole[-1:], chunk("", "stop") + DONE))

    assert [1.0, 4.0] == [t.at_s for t in tokens] and "ok" == ended.status
    assert 0.25 == exchange.read_lag_s and 6 == exchange.reads and 1.0 == exchange.first_event_s


def test_tokens_of_one_read_share_its_stamp_and_are_counted_as_such() -> None:
    """Gaps of nothing would pass for a fast server without a word."""
    tokens, _, exchange = read(answer(chunk("a") + chunk("b") + chunk("c"), chunk("d", "stop")))

    assert [1.0, 1.0, 1.0, 2.0] == [t.at_s for t in tokens] and 2 == exchange.shared_events


@pytest.mark.parametrize("how", ["closed", "reset", "timeout", "cancelled"])
def test_an_answer_that_ended_as_agreed_is_ok_however_its_connection_ended(how: How) -> None:
    """A server that never closes, or resets after [DONE], would fail every request."""
    _, ended, _ = read(answer(chunk("a"), chunk("", "length") + DONE, how=how, why="x"), output_tokens=1)

    assert ("ok", None) == (ended.status, ended.error)


def test_an_error_of_null_is_none() -> None:
    """A server that always writes the key would fail every request."""
    _, ended, _ = read(answer(chunk("a", error=None), chunk("", "stop", error=None) + DONE))

    assert "ok" == ended.status


@pytest.mark.parametrize(("code", "status"), [(429, "rejected"), (503, "rejected"), (529, "rejected"), (500, "error")])
def test_a_refusal_tells_the_status_and_the_words_of_the_server(code: int, status: str) -> None:
    """An overloaded server could not be distinguished from a broken one."""
    head = f"HTTP/1.1 {code} Sorry\r\nContent-Length: 41\r\nRetry-After: 7\r\n\r\n".encode()
    _, ended, exchange = read(answer(b'{"error": {"message": "too many for me"}}', head=head, how="complete"))

    assert (status, code) == (ended.status, exchange.http_status)
    assert f"HTTP {code} Sorry (Retry-After 7): too many for me" == ended.error


def test_an_error_shows_a_line_of_80_characters_of_the_server_without_the_key() -> None:
    """A page of HTML would fill the report, its escape sequences turn the terminal red, or a key end up in it."""
    head = b"HTTP/1.1 401 No" + b"o" * 500 + b"\r\n\r\n"
    reader = Reader(redaction=Redaction(("topsecret99",)))
    (ended,) = reader.read(answer(b"bad key topsecret99\n\x1b[31m" + b"<p>\n" * 500, head=head), Request(0, 0.0, 1, 1))

    assert isinstance(ended, Ended) and ended.error is not None
    reason, _, words = ended.error.removeprefix("HTTP 401 ").partition(": ")
    assert (80, 80) == (len(reason), len(words)) and words.startswith("bad key [hidden]")
    assert "topsecret99" not in ended.error and ended.error.isprintable()


@pytest.mark.parametrize(
    ("how", "data", "message"),
    [
        ("refused", (), "no way"),
        ("failed", (), "no way"),
        ("closed", (), "without an answer"),
        ("closed", (b"HTTP/1.1 200",), "before its answer was complete"),
        ("closed", (b"SSH-2.0-OpenSSH\r\n",), "does not begin like an HTTP/1.1 answer"),
    ],
)
def test_no_answer_at_all_is_an_error_that_says_why(how: How, data: Sequence[bytes], message: str) -> None:
    """A dead server would be a row without a reason."""
    _, ended, exchange = read(answer(*data, head=b"", how=how, why="no way" if how != "closed" else None))

    assert ("error", None) == (ended.status, exchange.http_status) and message in (ended.error or "")


def test_a_long_header_is_no_fault() -> None:
    """A gateway with large cookies would fail every request."""
    head = HEAD.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=" + b"x" * 20_000 + b"\r\n\r\n")
    _, ended, _ = read(answer(chunk("a"), chunk("", "stop") + DONE, head=head))

    assert "ok" == ended.status


def test_compressed_answers_are_read_all_the_same() -> None:
    """A proxy that compresses against our wish would make every answer malformed."""
    import gzip

    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n"
    _, ended, _ = read(answer(gzip.compress(chunk("a") + chunk("", "stop") + DONE), head=head))

    assert "ok" == ended.status


@pytest.mark.parametrize(("coding", "message"), [("gzip", "cannot be decompressed"), ("br", "compressed by br")])
def test_a_body_that_cannot_be_unpacked_is_an_error_that_says_so(coding: str, message: str) -> None:
    """A compressed answer would be called cut short."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: {coding}\r\n\r\n".encode()
    _, ended, _ = read(answer(chunk("a") + DONE, head=head))

    assert "error" == ended.status and message in (ended.error or "")


def test_zeros_on_every_chunk_are_no_counts() -> None:
    """A server that fills usage in only at the end would have all its tokens in the last event."""
    given = answer(chunk("a", **used(0)), chunk("bcd", **used(0)), chunk("", "stop", **used(8)) + DONE)
    tokens, _, exchange = read(given, output_tokens=8)

    assert [2, 6] == [t.tokens for t in tokens] and "usage" == exchange.counted_by


def test_the_times_that_a_server_tells_are_kept_in_seconds() -> None:
    """The queue of the server could not be distinguished from its work."""
    llama = {"timings": {"prompt_ms": 12.5, "predicted_ms": 50.0, "cache_n": 3}}
    vllm = {"metrics": {"queue_time_ms": 3.0, "time_to_first_token_ms": 21.0, "generation_time_ms": 40.0}}
    _, ended, one = read(answer(chunk("a"), chunk("", "stop", **llama) + DONE))
    _, _, other = read(answer(chunk("a"), chunk("", "stop") + chunk(None, None, **vllm) + DONE))

    assert (0.0125, 0.05, 3) == (one.server_prefill_s, one.server_decode_s, ended.cached_tokens)
    assert (0.003, 0.021, 0.04) == (other.server_queue_s, other.server_ttft_s, other.server_decode_s)


def test_reading_half_an_answer_tells_whether_a_token_has_come() -> None:
    """A limit on the first token would fire for requests that are being answered."""
    reader = Reader()

    assert not reader.started(answer()) and not reader.started(answer(b": ping\n\n", chunk("")))
    assert reader.started(answer(chunk("a"))) and not reader.started(answer(head=b""))


def test_the_texts_of_the_token_events_can_be_had() -> None:
    """A tokenizer after the run would count something else than the answer."""
    assert ["a", "b\n"] == Reader().parse(answer(chunk("a"), chunk(""), chunk("b\n"), chunk("", "stop") + DONE)).texts


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "text", "content", "usage", "finish_reason", "completion_tokens", "error", "message",
             "reasoning", "tool_calls", "function", "arguments", "timings", "metrics", "prompt_ms", "object",
             "prompt_tokens_details", "cached_tokens", "function_call", "name"]
        ),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON | st.builds(lambda c: {"choices": [c]}, JSON), max_size=5), st.booleans(), st.sampled_from(
    ["complete", "closed", "reset", "refused", "failed", "timeout", "cancelled"]))  # fmt: skip
def test_whatever_a_server_writes_gives_exactly_one_end(values: list[object], stream: bool, how: How) -> None:
    """One odd object would end a run with a traceback."""
    reads = [f"data: {json.dumps(value)}\n\n".encode() for value in values]
    for given_answer in (
        answer(*reads, how=how),
        answer(json.dumps(values[:1]).encode(), how=how, head=HEAD[:17] + b"\r\n\r\n"),
    ):
        tokens, _, exchange = read(given_answer, stream=stream)

        assert all(t.tokens >= 0 for t in tokens)
        assert (exchange.counted_by is not None) == bool(tokens)


@given(st.binary(max_size=200), st.sampled_from(["complete", "closed", "reset"]))
def test_bytes_that_are_no_http_give_exactly_one_end(noise: bytes, how: How) -> None:
    """A port that speaks something else would end a run with a traceback."""
    for head in (
        b"",
        HEAD[:17],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
    ):
        _, ended, _ = read(answer(noise, head=head, how=how))

        assert ended.status != "ok" and ended.error


@pytest.mark.parametrize("space", ["\x1c", "\x85", "\u00a0", "\u2028", "\u3000"])
def test_words_that_begin_with_an_odd_space_are_words(space: str) -> None:
    """A page that begins with a space that JSON does not know would end the run of all others."""
    page = f"{space}{{}} no room".encode()
    _, refused, _ = read(answer(page, head=b"HTTP/1.1 500 No\r\n\r\n"))
    _, broken, _ = read(answer(b"data: " + page + b"\n\n"))

    assert ("error", "HTTP 500 No: {} no room") == (refused.status, refused.error)
    assert ("error", True) == (broken.status, "malformed event" in (broken.error or ""))


def choices(*texts: str | None, finish: str | None = None) -> bytes:
    """An event for each choice that has a text, in one read."""
    made = [(i, text) for i, text in enumerate(texts) if text is not None]
    return b"".join(
        f"data: {json.dumps({'choices': [{'index': i, 'text': text, 'finish_reason': finish}]})}\n\n".encode()
        for i, text in made
    )


def test_a_stamp_holds_a_token_of_each_of_several_answers() -> None:
    """Three answers side by side would pass for one that is three times as fast."""
    request = Request(5, 0.0, 7, 3, extra=Extra(n=3))
    ends = choices("", "", "", finish="length") + f"data: {json.dumps({'choices': [], **used(8)})}\n\n".encode() + DONE
    came = answer(choices("a", "a"), choices(None, None, "a"), choices("b", "b", "b"), choices("c", "c"), ends)
    *events, ended = Reader().read(came, request)
    cut = answer(choices("a", "a", "a"), choices("b", finish="length"), choices(None, "b", finish="length") + DONE)
    *_, short = Reader().read(cut, request)

    assert [(1.0, 3), (3.0, 3), (4.0, 2)] == [(e.at_s, e.tokens) for e in events if isinstance(e, TokenEvent)]
    assert isinstance(ended, Ended) and ("ok", 7) == (ended.status, ended.prompt_tokens_server)
    assert isinstance(short, Ended) and ("truncated", "2 of 3 choices ended") == (short.status, short.error)


def test_texts_of_several_answers_are_not_counted_as_one() -> None:
    """Each stamp would get the tokens of as many as there are answers, and the run would not be valid."""
    client, came = OpenAI(), answer(choices("a", "a"), choices("b", "b"), how="reset")
    for n in (1, 2):
        list(client.read(Request(n, 0.0, 7, 3, extra=Extra(n=n)), came))

    assert {1: ["a", "a", "b", "b"]} == client._recount.texts


def test_several_answers_in_one_piece_are_one_event_of_all_their_tokens() -> None:
    """Their tokens would seem to come at once, in no time."""
    body = {
        "choices": [{"index": i, "message": {"content": "a b"}, "finish_reason": "stop"} for i in range(2)],
        **used(4),
    }
    head = HEAD.replace(b"text/event-stream", b"application/json")
    *events, ended = Reader(stream=False).read(
        answer(json.dumps(body).encode(), head=head), Request(5, 0.0, 7, 2, extra=Extra(n=2))
    )

    assert [4] == [event.tokens for event in events if isinstance(event, TokenEvent)]
    assert isinstance(ended, Ended) and "ok" == ended.status
