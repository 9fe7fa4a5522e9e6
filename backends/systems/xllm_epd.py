"""xLLM's stages for requests with images: encode, prefill and decode, on one replica or apart.

Source: xLLM technical report, arXiv 2510.14686 (hybrid encode-prefill-decode disaggregation). On TextCaps it claims a
goodput of 9.5 requests per second, 7.2 without disaggregation, and 5.1 without the order of stages, too.
"""

from dataclasses import dataclass, field

from backends.serving.batch import Batch, Sequence, VisibleRequest
from backends.serving.replica import Replica
from backends.serving.routing import NONE_UP, ClusterView, Decision, FinishedRequest, Hold, Reject
from backends.systems._sent import Sent
from harness.bounds import AtLeastOne, Checked, NotNegative, Positive

ENCODE_TOKEN_S = 2e-5
"""Seconds to encode what becomes one token: 2 x 675 M parameters of the vision encoder of Qwen2-VL (arXiv 2409.12191)
for each of 4 patches, at 0.68 of 390 TFLOPS (xLLM's predictor)."""
TRANSFER_TOKEN_S = 7e-7
"""Seconds to move the embedding of a token: 3,584 elements of 16 bits at 10 GB/s (xLLM's predictor)."""


@dataclass(slots=True)
class StagesPolicy(Checked):
    """Stages: decodes first, then chunks of prompts, and images are encoded only if no encoded prompt waits.

    Without `ordered` a prompt is encoded in the step in which it is admitted, whatever runs beside it.

    `budget` tokens a step, of which decodes take one each; at most `max_seqs` running sequences. A step encodes images
    of `encode_tokens` tokens at most, or one, which takes `encode_token_s` a token before anything else of it runs.
    """

    budget: AtLeastOne = 2048
    max_seqs: AtLeastOne = 256
    encode_tokens: AtLeastOne = 1024
    encode_token_s: NotNegative = ENCODE_TOKEN_S
    ordered: bool = True
    _encoded: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    def on_finish(self, seq: Sequence) -> None:
        self._encoded.discard(seq.request.id)

    def fill(self, replica: Replica, batch: Batch) -> None:
        """Decodes, prompts that have begun, prompts that are encoded, and images where there are none of these."""
        if replica.decoding.members:
            replica.decode(batch, self.budget)
        left = replica.run_chunks(batch, max(0, self.budget - batch.decode_seqs))
        if batch.preempted:
            return
        if not self.ordered:
            self._admit_and_encode(replica, batch, left)
            return
        left = self._admit(replica, batch, left)
        if not batch.prefills:
            room = self.encode_tokens
            for seq in replica.waiting:
                if room < self.encode_tokens and seq.request.image_tokens > room:
                    break
                room -= self._encode(seq, batch)
                if room <= 0:
                    break
            if not batch.decode_seqs:  # a step that only encodes is that of the prompts, too
                self._admit(replica, batch, left)
        batch.repeats = not (replica.waiting or batch.prefills)

    def _encode(self, seq: Sequence, batch: Batch) -> int:
        """Encode the images of a prompt, unless they are; their tokens."""
        if not (tokens := seq.request.image_tokens) or seq.request.id in self._encoded:
            return 0
        self._encoded.add(seq.request.id)
        batch.setup_s += tokens * self.encode_token_s
        return tokens

    def _admit(self, replica: Replica, batch: Batch, left: int) -> int:
        """Begin prompts whose images are encoded; how many tokens are left."""
        while left > 0 and replica.waiting and replica.running < self.max_seqs:
            seq = replica.waiting[0]
            if (seq.request.image_tokens and seq.request.id not in self._encoded) or not replica.admissible():
                break
            tokens = min(seq.need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        return left

    def _admit_and_encode(self, replica: Replica, batch: Batch, left: int) -> None:
        while left > 0 and replica.waiting and replica.running < self.max_seqs and replica.admissible():
            self._encode(replica.waiting[0], batch)
            tokens = min(replica.waiting[0].need(), left)
            replica.admit(batch, tokens)
            left -= tokens
        batch.repeats = not (replica.waiting or batch.prefills)


@dataclass(slots=True)
class EncodeRouter(Checked):
    """Encode: images are encoded on `encoders` GPUs of their own before the request goes to the least loaded replica.

    Each encoder takes one request after the other, `encode_token_s` a token of its images, and the embeddings are at
    the replica `transfer_token_s` a token later. Encoders are no replicas: their GPUs are not counted.

    Sends by predicted time, as `min-load` does, when the images of a request are encoded.
    """

    encoders: AtLeastOne = 1
    encode_token_s: Positive = ENCODE_TOKEN_S
    transfer_token_s: NotNegative = TRANSFER_TOKEN_S
    _free_s: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _ready_s: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)  # by request id
    _sent: Sent = field(default_factory=Sent, init=False, repr=False, compare=False)

    @property
    def report_s(self) -> float:
        """0: it sees replicas as they are."""
        return 0.0

    def decide(self, request: VisibleRequest, now_s: float, view: ClusterView) -> Decision:
        """Held until its images are encoded, then the least loaded replica."""
        if tokens := request.image_tokens:
            if request.id not in self._ready_s:
                self._free_s = self._free_s or [0.0] * self.encoders
                encoder = min(range(self.encoders), key=self._free_s.__getitem__)
                done_s = self._free_s[encoder] = max(now_s, self._free_s[encoder]) + tokens * self.encode_token_s
                self._ready_s[request.id] = done_s + tokens * self.transfer_token_s
            if now_s < self._ready_s[request.id]:
                return Hold(self._ready_s[request.id])
        decision = self._sent.least_loaded(request, now_s, view)
        if isinstance(decision, Reject):
            return Hold() if decision.reason == NONE_UP else decision
        self._ready_s.pop(request.id, None)
        return decision

    def on_finish(self, finished: FinishedRequest) -> None:
        self._sent.on_finish(finished)
