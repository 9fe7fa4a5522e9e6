"""What a gateway knows of the requests that it has sent, without any report: a share of several routers."""

from dataclasses import dataclass, field

from backends.serving.batch import VisibleRequest
from backends.serving.routing import NONE_UP, ClusterView, FinishedRequest, Reject, ReplicaView, Send


@dataclass(slots=True)
class Sent:
    """When each replica will be through with its prompts (s), and the prompt tokens of what each one decodes."""

    _prompts_until_s: dict[int, float] = field(default_factory=dict)
    _decoding: dict[int, dict[int, int]] = field(default_factory=dict)  # replica: prompt tokens by request id
    _tokens: dict[int, int] = field(default_factory=dict)  # replica: their sum
    _where: dict[int, int] = field(default_factory=dict)  # request id: replica that decodes it

    def queue_s(self, replica: ReplicaView, now_s: float) -> float:
        """Seconds until it has computed the prompts that were sent to it, by the predicted time of each."""
        if not replica.waiting and not replica.running:
            self._prompts_until_s.pop(replica.index, None)  # what was predicted too long is over
        return max(0.0, self._prompts_until_s.get(replica.index, 0.0) - now_s)

    def ttft_s(self, replica: ReplicaView, request: VisibleRequest, now_s: float, stored: int = 0) -> float:
        """Predicted seconds until its prompt is computed there but for the tokens that are `stored`."""
        return self.queue_s(replica, now_s) + replica.step_s([(request.prompt_tokens - stored, stored)], 0, 0)

    def decodes(self, replica: ReplicaView) -> tuple[int, int]:
        """Requests that decode there or will, and the tokens of their contexts."""
        sent = len(self._decoding.get(replica.index, ()))
        seqs, context = replica.running, replica.context_tokens
        if sent > seqs:  # the others are on their way
            return sent, context + (sent - seqs) * self._tokens[replica.index] // sent
        return seqs, context

    def tpot_s(self, replica: ReplicaView, request: VisibleRequest) -> float:
        """Predicted seconds of a decode step there with this request."""
        seqs, context = self.decodes(replica)
        return replica.step_s([], seqs + 1, context + request.prompt_tokens)

    def send(
        self, request: VisibleRequest, prefill: ReplicaView, decode: ReplicaView | None, now_s: float, stored: int = 0
    ) -> Send:
        """Note the decision, and make it."""
        self._prompts_until_s[prefill.index] = now_s + self.ttft_s(prefill, request, now_s, stored)
        if decode is None:
            return Send(prefill.index)
        self.decode(request, decode.index)
        return Send(prefill.index, decode.index)

    def decode(self, request: VisibleRequest, index: int) -> None:
        """It will decode on this replica."""
        self.forget(request.id)
        self._decoding.setdefault(index, {})[request.id] = request.prompt_tokens
        self._tokens[index] = self._tokens.get(index, 0) + request.prompt_tokens
        self._where[request.id] = index

    def forget(self, request_id: int) -> None:
        """It is over, or goes elsewhere."""
        index = self._where.pop(request_id, None)
        if index is not None:
            self._tokens[index] -= self._decoding[index].pop(request_id)

    def on_finish(self, finished: FinishedRequest) -> None:
        self.forget(finished.request.id)

    def least_loaded(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Send | Reject:
        """The shortest queue of prompts by predicted time, and the fastest decode step after it."""
        entries, decodes = view.open("prefill", "mixed"), view.open("decode")
        if not entries:
            return Reject(NONE_UP)
        prefill = min(entries, key=lambda r: self.queue_s(r, now_s))
        decode = min(decodes, key=lambda r: self.tpot_s(r, request)) if decodes else None
        return self.send(request, prefill, decode, now_s)
