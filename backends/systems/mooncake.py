"""Mooncake: KV as the centre of a cluster of prefill and decode replicas, with early rejection under overload.

Source: Qin et al., Mooncake, arXiv 2407.00079, section 7: early rejection by the load of the decode replicas, and by
the load predicted for the time when the prompt will be computed, as prefill and decode else are loaded in turn. It
claims that rejections fall from 4,183 to 3,589.
"""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import Literal

from backends.serving.batch import VisibleRequest
from backends.serving.routing import NONE_UP, ClusterView, Decision, FinishedRequest, Reject, ReplicaView, Requirements
from backends.systems._sent import Sent
from harness.api import Row
from harness.bounds import Checked, Positive, PositiveShare
from harness.spec import link_bytes_per_s

ELEMENT_BYTES = 2
"""KV of BF16."""
ATTENTION_FLOPS, LINEAR_FLOPS = 4, 22
"""FLOP of a prompt of n tokens and width d are layers * (4 n^2 d + 22 n d^2) (gated feed-forward)."""
LATE = "no prefill replica meets the target for the first token"
FULL = "no decode replica has room, or meets the target for the tokens that follow"


@dataclass(slots=True)
class EarlyRejectRouter(Checked):
    """Early rejection: under overload a request is rejected before its prompt is computed, not after.

    Rejects where the predicted time of the first token passes `ttft_s` (seconds), or the load of decode passes 1.

    That load is the predicted step over `tpot_s`, or the KV over the share `memory` of what there is room for, if that
    is more. It is checked when the prompt is computed, which is wasted then; `rule=naive` checks it on arrival too,
    with what decodes now, and `rule=predicted` with what will decode when the prompt is computed: what decodes now,
    less those that end until then if all answers take the mean time of those that ended, and what joins until then.
    """

    rule: Literal["none", "naive", "predicted"] = "predicted"
    ttft_s: Positive = 30.0
    tpot_s: Positive = 0.1
    memory: PositiveShare = 0.9
    report_s: float = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)
    _prompts: dict[int, tuple[float, int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _ended: tuple[int, float] = field(default=(0, 0.0), init=False, repr=False, compare=False)  # answers, their seconds

    @property
    def requires(self) -> Requirements:
        """Predicted times."""
        return Requirements(step_times=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """The prefill replica with the shortest queue, if the request will meet both targets."""
        sent, decodes = self._sent, view.open("decode")
        prefill = min(view.open("prefill", "mixed"), key=lambda r: sent.queue_s(r, now_s), default=None)
        if prefill is None:
            return Reject(NONE_UP)
        ttft_s, stored = _predicted(sent, prefill, request, now_s)
        if ttft_s > self.ttft_s:
            return Reject(LATE)
        if decodes and self.rule == "naive" and self._load(request, decodes)[0] > 1:
            return Reject(FULL)
        if decodes and self.rule == "predicted" and self._load_after(ttft_s, request, decodes, now_s) > 1:
            return Reject(FULL)
        self._prompts[request.id] = now_s + ttft_s, request.prompt_tokens
        return sent.send(request, prefill, None, now_s, stored)

    def hand_off(self, request: VisibleRequest, now_s: float, view: ClusterView) -> int | Reject | None:  # noqa: ARG002
        """The decode replica with the least load, if that is at most 1; None where no report shows one."""
        self._prompts.pop(request.id, None)
        decodes = view.open("decode")
        if not decodes:
            return None
        load, index = self._load(request, decodes)
        if load > 1:
            return Reject(FULL)
        self._sent.decode(request, index)
        return index

    def on_finish(self, finished: FinishedRequest) -> None:
        self._sent.on_finish(finished)
        self._prompts.pop(finished.request.id, None)
        if finished.tpot_s is not None:
            count, seconds = self._ended
            self._ended = count + 1, seconds + finished.tpot_s * (finished.output_tokens - 1)

    def _load(self, request: VisibleRequest, decodes: list[ReplicaView]) -> tuple[float, int]:
        """The least load of a decode replica with this request, and whose it is."""
        loads = []
        for replica in decodes:
            seqs, context = self._sent.decodes(replica)
            loads.append((self._load_of(replica, seqs + 1, context + request.prompt_tokens), replica.index))
        return min(loads)

    def _load_of(self, replica: ReplicaView, seqs: int, context: int) -> float:
        step = replica.step_s([], seqs, context) / self.tpot_s
        return max(step, context / (self.memory * replica.total_blocks * replica.block_tokens))

    def _load_after(self, seconds: float, request: VisibleRequest, decodes: list[ReplicaView], now_s: float) -> float:
        """The load with this request in so many seconds, in equal shares."""
        count, total_s = self._ended
        lasts_s = total_s / count if total_s else inf
        share, at_s = max(0.0, 1 - seconds / lasts_s), now_s + seconds
        now = [self._sent.decodes(replica) for replica in decodes]
        joins = [tokens for from_s, tokens in self._prompts.values() if at_s - lasts_s < from_s <= at_s]
        seqs = share * sum(seqs for seqs, _ in now) + len(joins) + 1
        context = share * sum(context for _, context in now) + sum(joins) + request.prompt_tokens
        return self._load_of(decodes[0], ceil(seqs / len(decodes)), round(context / len(decodes)))


@dataclass(slots=True)
class ConductorRouter(Checked):
    """KV-centric: the replica that will give the first token soonest, with what its tiers store and what loading costs.

    Source: Qin et al., Mooncake, FAST 2025, algorithm 1: predicted seconds of the transfer, of the queue, and of the
    prompt without its stored prefix. With a pool every replica can load what any has stored (global), without one what
    it has itself (local).

    Predicted times of prompts, and of decodes where prefill and decode are apart, are those of the latency model. A
    request that will miss `ttft_s` or `tpot_s` is rejected where they are given. `replicas` publish what they store.
    """

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    report_s: float = 0.0
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)

    @property
    def requires(self) -> Requirements:
        """Predicted times."""
        return Requirements(step_times=True)

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """The least predicted time, the first of equals; the decode replica with the fastest step."""
        predicted = [
            (*_predicted(self._sent, replica, request, now_s), replica) for replica in view.open("prefill", "mixed")
        ]
        ttft_s, stored, prefill = min(predicted, key=lambda row: row[0], default=(inf, 0, None))
        decode = min(view.open("decode"), key=lambda r: self._sent.tpot_s(r, request), default=None)
        if prefill is None:
            return Reject(NONE_UP)
        if self.ttft_s is not None and ttft_s > self.ttft_s:
            return Reject(LATE)
        if decode is not None and self.tpot_s is not None and self._sent.tpot_s(decode, request) > self.tpot_s:
            return Reject(FULL)
        return self._sent.send(request, prefill, decode, now_s, stored)

    def on_finish(self, finished: FinishedRequest) -> None:
        self._sent.on_finish(finished)


def _predicted(sent: Sent, replica: ReplicaView, request: VisibleRequest, now_s: float) -> tuple[float, int]:
    """Seconds until the prompt is computed there: load, queue, computing; and the tokens that it stores by then."""
    tokens, load_s = replica.tier_load(request)
    stored = min(request.prompt_tokens - 1, tokens + replica.prefix_tokens(request))
    return load_s + sent.ttft_s(replica, request, now_s, stored), stored


def kv_reuse(
    prefix_tokens: int = 8192, peak_flops: float = 312e12, gpus: int = 8, link: str = "200Gbps", hidden: int = 8192,
    layers: int = 80, group: float = 8,
) -> list[Row]:  # fmt: skip
    """Find the link from which on loading the KV of a prefix is faster than computing it again.

    The defaults are LLaMA3-70B with 8 query heads to a KV head, on 8 A800 at their peak FLOP/s (H800: 989e12). Mooncake
    prints 6 and 19 GB/s for 8,192 tokens on 8 of each.

    Source: Mooncake, FAST 2025, equation 2.
    """
    kv_bytes = layers * prefix_tokens * 2 * hidden * ELEMENT_BYTES / group
    flops = layers * (ATTENTION_FLOPS * prefix_tokens**2 * hidden + LINEAR_FLOPS * prefix_tokens * hidden**2)
    load_s, compute_s = kv_bytes / link_bytes_per_s(link), flops / (peak_flops * gpus)
    return [{"kv_bytes": kv_bytes, "least_link_bytes_per_s": kv_bytes / compute_s, "load_s": load_s,
             "compute_s": compute_s, "pays": load_s < compute_s}]  # fmt: skip
