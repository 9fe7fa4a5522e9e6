"""Sessions of coding agents as Weka and AgentX publish them (JSON: a conversation with its requests and sub-agents)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np

from harness.bounds import Checked
from workloads.readers import _cells
from workloads.readers._block import MISSING, Block
from workloads.readers._calls import Call, blank, of_calls
from workloads.readers._requests import Requests
from workloads.readers._sessions import ID_BITS, LOCAL

MAIN, SUBAGENT = "main", "subagent"
TOOL, PERSON = "tool", "person"
_LEFT_ALONE = "first request of a sub-agent in the background: no request waits for its answer"


@dataclass(slots=True)
class _Conversation:
    """Collects the requests of one conversation; those that are waited for come first."""

    block: Block
    row: int
    block_tokens: int
    base: int
    calls: list[Call] = field(default_factory=list)

    def fail(self, message: str) -> NoReturn:
        """Raise UsageError naming file and line."""
        self.block.fail(self.row, "requests", message)

    def read(self, requests: Sequence[object], common: int) -> None:
        """All entries: requests of the agent itself, and sub-agents with theirs."""
        last: int | None = None
        due: list[tuple[float, int]] = []  # when the answer of a sub-agent came back, and its last request
        for number, entry in enumerate(requests):
            fields = entry if isinstance(entry, dict) else {}
            place = f"request {number}"
            if fields.get("type") == "subagent":
                back = self._subagent(fields, place, last)
                due += [] if back is None else [back]
                continue
            at_s = self._number(fields, "t", place)
            joined = [node for back_s, node in due if back_s <= at_s]
            due = [pending for pending in due if pending[0] > at_s]
            last = self._request(fields, place, at_s, last, joined, None, common)

    def _subagent(self, given: Mapping[str, Any], where: str, last: int | None) -> tuple[float, int] | None:
        """Read a sub-agent; when its answer came back and its last request, or None where no one waits for it.

        `t` of one that has ended is when its answer came back, `duration_ms` before which it began; one without a
        duration runs in the background from `t` on.
        """
        requests = given.get("requests")
        if not isinstance(requests, list):
            self.fail(f"{where}: a list of the requests of the sub-agent expected, got {_cells.shown(requests)}")
        t_s, waited = self._number(given, "t", where), given.get("duration_ms") is not None
        start_s = max(0.0, t_s - self._number(given, "duration_ms", where) / 1000) if waited else t_s
        agent = given.get("agent_id")
        name = agent if isinstance(agent, str) and agent else f"{where} of {self.block.start + self.row}"
        common = self.common(given, where)
        before = last
        for number, entry in enumerate(requests):
            inner = entry if isinstance(entry, dict) else {}
            place = f"{where}, request {number} of the sub-agent"
            at_s = start_s + self._number(inner, "t", place)
            before = self._request(inner, place, at_s, before, [], name, common, first=number == 0)
            if number == 0 and not waited:
                self.calls[before].notes.append(_LEFT_ALONE)
        return (t_s, before) if requests and waited and before is not None else None

    def _request(
        self, given: Mapping[str, Any], where: str, at_s: float, before: int | None, joins: list[int],
        agent: str | None, common: int, *, first: bool = False,
    ) -> int:  # fmt: skip
        """Add a request; returns its number."""
        if given.get("type") not in ("n", "s"):
            self.fail(f"{where}: type must be n, s or subagent, got {_cells.shown(given.get('type'))}")
        api_s = self._number(given, "api_time", where) if given.get("api_time") is not None else None
        think_s = self._number(given, "think_time", where) if given.get("think_time") is not None else None
        waited = [*([] if before is None else [before]), *joins]
        at_s = max([at_s, *(self.calls[node].at for node in waited)])
        if before is None:
            delay_s = 0.0
        elif joins or first or think_s is None:  # a think time counts from the agent's own answer before
            delay_s = max(0.0, at_s - max(self.calls[node].end_s for node in waited))
        else:
            delay_s = think_s
        prompt, ids = self._tokens(given, "in", where), self._ids(given, where)
        notes = {
            "recorded without streaming, and replayed like the others": given["type"] != "s",
            "no api_time: the think time after the answer holds the answer, too": api_s is None,
            f"hash_ids name fewer than the whole blocks of {self.block_tokens} tokens of the prompt":
                len(ids) < prompt // self.block_tokens,
        }  # fmt: skip
        self.calls.append(
            Call(
                at_s, api_s, prompt, self._tokens(given, "out", where), str(self.block.start + self.row),
                MAIN if agent is None else SUBAGENT, ids, agent, common, before, joins, delay_s,
                _cause(given.get("input_types")), row=self.row, notes=[text for text in notes if notes[text]],
            )
        )  # fmt: skip
        return len(self.calls) - 1

    def _ids(self, given: Mapping[str, Any], where: str) -> np.ndarray:
        ids, prompt = given.get("hash_ids", MISSING), self._tokens(given, "in", where)
        if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
            self.fail(f"{where}: hash_ids must be a list of whole numbers, got {_cells.shown(ids)}")
        most = 1 << ID_BITS if self.base else LOCAL
        if ids and not (min(ids) >= 0 and max(ids) < most):
            self.fail(f"{where}: ids of blocks must be from 0 to {most - 1}, got {min(ids)} to {max(ids)}")
        if len(ids) > -(-prompt // self.block_tokens):
            what = f"{prompt} tokens fill at most {-(-prompt // self.block_tokens)} blocks of {self.block_tokens}"
            self.fail(f"{where}: {what}, got {len(ids)} hash_ids")
        return np.array(ids, np.int64) + self.base

    def common(self, given: Mapping[str, Any], where: str) -> int:
        """Tokens of tools and system prompt, with which the prompts of an agent begin."""
        names = ("tool_tokens", "system_tokens")
        return sum(self._tokens(given, name, where) for name in names if given.get(name) is not None)

    def _number(self, given: Mapping[str, Any], key: str, where: str) -> float:
        return _cells.number(given.get(key, MISSING), lambda message: self.fail(f"{where}, {key}: {message}"))

    def _tokens(self, given: Mapping[str, Any], key: str, where: str) -> int:
        return _cells.tokens(given.get(key, MISSING), lambda message: self.fail(f"{where}, {key}: {message}"))


@dataclass(frozen=True, slots=True)
class Weka(Checked):
    """Conversations, each a JSON object in a file of its own (a folder of them), or one a line.

    Stamps and times are seconds, counts tokens, `hash_ids` name the blocks of a prompt, of `block_tokens` tokens (the
    file says the same, or is refused). Ids of the scope "local" are those of one conversation and its sub-agents;
    those of the scope "global" are the same everywhere. A request follows the one before it of its agent after its
    `think_time`; a sub-agent starts after the request before it, beside its parent, whose next request waits for the
    sub-agents whose answers had come back, unless they run in the background. Conversations have clocks of their own:
    here each starts where the one before ended. Source: callanjfox/kv-cache-tester, Apache-2.0; InferenceX AgentX.
    """

    block_tokens: _cells.BlockTokens = 64

    form: ClassVar[str] = "json"
    needs: ClassVar[tuple[str, ...]] = ("id", "block_size", "requests")
    stamp: ClassVar[str] = "requests"
    facts: ClassVar[Mapping[str, str]] = {
        "tokenizer": "that of the recorded models, not published",
        "stamps": "seconds from the start of each conversation; here each starts where the one before ended",
        "clock": "session",
    }

    def requests(self, block: Block) -> Requests:
        """The requests of all agents in order of time; one without prompt or output tokens is reported as dropped."""
        calls: list[Call] = []
        before_s = 0.0  # stamps of the conversations of a block follow one another, too
        conversations = block.each_row(lambda row: self._conversation(block, row), lambda row: ([blank(row)], 0.0))
        for conversation, lasts_s in conversations:
            for call in conversation:
                call.at += before_s
                call.parent_row = None if call.parent_row is None else call.parent_row + len(calls)
                call.joins = [join + len(calls) for join in call.joins]
            before_s += lasts_s
            calls += conversation
        return of_calls(calls, "t", 1, "in", "out", by_times=False, lasts=before_s)

    def _conversation(self, block: Block, row: int) -> tuple[list[Call], float]:
        """The requests of one conversation in order of time, and how long (s) it lasted."""
        requests, size = (block.cells(name)[row] for name in ("requests", "block_size"))
        if not isinstance(requests, list):
            block.fail(row, "requests", f"a list expected, got {_cells.shown(requests)}")
        if size != self.block_tokens:
            remedy = f"take --reader weka:block_tokens={size}" if isinstance(size, int) else "a number expected"
            block.fail(
                row, "block_size", f"blocks of {self.block_tokens} tokens expected, got {_cells.shown(size)}; {remedy}"
            )
        scope = block.cells("hash_id_scope")[row]
        if scope not in ("local", "global", MISSING):
            block.fail(row, "hash_id_scope", f"local or global expected, got {_cells.shown(scope)}")
        base = 0 if scope == "global" else LOCAL | (block.start + row) << ID_BITS
        conversation = _Conversation(block, row, self.block_tokens, base)
        counts = {name: block.cells(name)[row] for name in ("tool_tokens", "system_tokens")}
        present = {name: value for name, value in counts.items() if value is not MISSING}
        conversation.read(requests, conversation.common(present, "the conversation"))
        # what is waited for comes first: the sorting is stable
        order = sorted(range(len(conversation.calls)), key=lambda i: conversation.calls[i].at)
        place = {old: new for new, old in enumerate(order)}
        calls = [conversation.calls[i] for i in order]
        first_s = calls[0].at if calls else 0.0
        for call in calls:
            call.at -= first_s
            call.parent_row = None if call.parent_row is None else place[call.parent_row]
            call.joins = [place[join] for join in call.joins]
        return calls, max((call.end_s for call in calls), default=0.0)


def _cause(kinds: object) -> str | None:
    """Whose input a request brings: that of tools only, or of a person (too); None where the file does not say."""
    if not isinstance(kinds, list) or not kinds:
        return None
    return TOOL if set(map(str, kinds)) == {"tool_result"} else PERSON
