"""What follow-ups repeat: messages with roles, the server's own answers, and lengths that stay those of the plan."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from backends.client import history
from backends.client.body import Builder, RequestFormat
from backends.client.history import History
from harness.api import Request
from workloads.content.text import Text
from workloads.content.tokens import Tokens

CHAT, COMPLETION = RequestFormat(), RequestFormat(api="completions", prompt="ids", vocab_size=1000)


def turns(count: int, *, block: int = 16, new: int = 30, out: int = 20) -> list[Request]:
    """A conversation whose prompts are all that came before and something new."""
    found, prompt = [], 0
    for turn in range(count):
        prompt += new + (out if turn else 0)
        ids = tuple(range(-(-(prompt + out) // block)))
        found.append(Request(turn, 0.0, prompt, out, ids, block, session=3, turn=turn, after=(turn - 1,) * bool(turn)))
    return found


def test_a_chat_is_the_messages_before_the_answer_of_the_server_and_one_more() -> None:
    """The server would find nothing of its own answers, and compute prompts that no client sends."""
    past = History(CHAT, Text(), True)
    before: tuple[Any, ...] = ()
    for request in turns(8):
        messages = past.prompt(request)
        body = Builder(CHAT, Text()).fields(request, messages)["messages"]

        assert before == messages[: len(before)]
        assert ["user", "assistant"] * request.turn + ["user"] == [message["role"] for message in body]  # type: ignore[attr-defined]
        assert request.prompt_tokens == sum(message.tokens for message in messages)
        past.take(request, f"answer {request.id}", [], None)
        before = (*messages, ("assistant", f"answer {request.id}", request.output_tokens))
    assert (7, 7) == (past.follow_ups, past.repeating)


def test_ids_of_a_follow_up_are_those_of_prompt_and_answer_and_new_ones() -> None:
    """Text that is cut into tokens again misses the cache; ids are exact."""
    past, before = History(COMPLETION, Tokens(), True), []
    for request in turns(5):
        messages = past.prompt(request)
        prompt = [i for message in messages for i in message.piece]

        assert before == prompt[: len(before)]
        assert request.prompt_tokens == len(prompt)
        answer = [1000 + request.id] * request.output_tokens
        past.take(request, "", answer, (request.prompt_tokens, request.output_tokens))
        before = [*prompt, *answer]


def test_a_further_message_makes_up_for_answers_of_other_lengths_and_for_the_template() -> None:
    """A server that ends its answers early would get ever shorter prompts than the trace has."""
    past, errors, server = History(CHAT, Text(), True), [], 0
    for request in turns(8):
        messages = past.prompt(request)
        words = sum(len(str(message.piece).split()) for message in messages[-1:])
        server += words + (4 if request.turn else 0)  # a token a word, and four for each further turn
        errors.append(server - request.prompt_tokens)
        past.take(request, "short answer", [], (server, 2))
        server += 2

    assert [0, 4] == errors[:2]
    assert all(abs(error) <= 1 for error in errors[2:])


def test_what_shares_nothing_begins_anew() -> None:
    """A sub-agent would get the conversation of another, and a prompt of a shortened history more than it has."""
    past = History(CHAT, Text(), True)
    first, second = turns(2)
    past.prompt(first)
    past.take(first, "an answer", [], None)
    other = Request(7, 0.0, 90, 5, (70, 71, 72, 73, 74, 75), 16, session=3, turn=1, after=(0,))
    shorter = Request(8, 0.0, 40, 5, (0, 1, 2), 16, session=3, turn=1, after=(0,))
    elsewhere = Request(9, 0.0, second.prompt_tokens, 5, second.prefix_ids, 16, session=4, turn=1, after=(0,))

    assert [1, 1, 1, 3] == [len(past.prompt(request)) for request in (other, shorter, elsewhere, second)]


def test_branches_of_one_answer_repeat_it_each() -> None:
    """Parallel calls of an agent go on from the same messages."""
    past = History(CHAT, Text(), True)
    first, second, _ = turns(3)
    branch = Request(5, 0.0, second.prompt_tokens + 9, 5, (*first.prefix_ids, 90), 16, session=3, turn=1, after=(0,))
    past.prompt(first)
    past.take(first, "an answer", [], None)
    messages = past.prompt(second)
    past.take(second, "another", [], None)

    assert messages[:2] == past.prompt(branch)[:2]
    assert messages[2] != past.prompt(branch)[2]


def test_made_up_answers_stand_where_recorded_ones_are_wanted() -> None:
    past = History(CHAT, Text(), False)
    first, second = turns(2)
    past.prompt(first)
    past.take(first, "by the server", [], (first.prompt_tokens, 3))
    answer = past.prompt(second)[1]

    assert "assistant" == answer.role
    assert first.output_tokens == len(str(answer.piece).split())
    assert "by the server" not in str(answer.piece)


def test_memory_of_conversations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that are over would stay for ever."""
    monkeypatch.setattr(history, "MOST_TOKENS", 1000)
    past = History(CHAT, Text(), True)
    for session in range(200):
        request = Request(session, 0.0, 50, 10, session=session)
        past.prompt(request)
        past.take(request, "answer", [], None)
        past.forget(session)

    assert not past._sent
    assert 1000 >= past._tokens == sum(kept.tokens for kept in itertools.chain(*past._kept.values()))


def test_the_wire_has_roles_and_the_answers_of_the_server(
    scripted: Callable, run_here: Callable
) -> None:  # fmt: skip
    """Conversations of 2 to 8 turns, as a server records them."""
    count = random.Random(5).randint(2, 8)
    for turns_each, given in ((count, "live"), (2, "recorded"), (3, "lengths")):
        server = scripted(calm={"overhead": 5})
        backend = f"openai:url={server.url()},model=m,salt=none"
        code, _, err = run_here(
            "run", "--backend", backend, "--workload", "fixed:prompt=20,output=6", "--rate", "40", "--sessions",
            f"fixed:turns={turns_each},think_s=0", "--requests", str(4 * turns_each), "--history", given,
            "--calibrate", "off", "--no-html", "--out", given,
        )  # fmt: skip
        assert 0 == code, err
        bodies = {int(s.headers["x-request-id"]): s.body["messages"] for s in server.seen
                  if s.method == "POST" and int(s.headers.get("x-request-id", -1)) >= 0}  # fmt: skip
        chats = sorted(bodies.values(), key=len)
        answer = "tok0 tok1 tok2 tok3 tok4 tok5 "
        if given == "lengths":
            assert all(1 == len(messages) for messages in chats)
            continue
        assert 2 * turns_each - 1 == len(chats[-1])
        for messages in chats:
            assert ["user", "assistant"] * (len(messages) // 2) + ["user"] == [m["role"] for m in messages]
            past = [m["content"] for m in messages if m["role"] == "assistant"]
            assert [answer] * len(past) == past if given == "live" else answer not in past
            assert len(messages) == 1 or messages[:-2] in bodies.values()
