"""vLLM's scheduler class that asks a policy of this project what runs next; imported by vLLM alone.

    vllm serve MODEL --scheduler-cls backends.vllm.scheduler.PolicyScheduler \\
        --no-async-scheduling --no-enable-prefix-caching --additional-config '{"bench_policy": "sarathi:budget=512"}'

vLLM keeps the tokens, the page tables and the model; the replica beside it keeps what the policy sees: its queue, what
each sequence has computed, and blocks. A step of the replica is a step of vLLM with the same tokens for the same
requests. Source of the interface: vllm-project/vllm 0.32.0, vllm/v1/core/sched/{interface,scheduler,output}.py, which
vLLM calls not public; `docs/guide/simulator.md` says what it leaves out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreOutputs
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

from backends.serving.batch import Batch
from backends.serving.plugins import Admission, LengthFeedback, Padding, Simulated
from backends.serving.replica import Replica
from backends.simulator.core import Core
from harness.api import Request
from harness.errors import UsageError, no_such
from harness.registry import make

if TYPE_CHECKING:
    from backends.serving.batch import Sequence

OPTIONS = {"bench_policy": "sarathi", "bench_kv": "paged", "bench_admission": "fcfs"}
"""Keys of vLLM's --additional-config and their defaults: the policy, the memory mode and the rule of admission."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Slots:
    """Another rule of admission, within the sequences that vLLM's model runner has room for (--max-num-seqs).

    While vLLM is paused for new requests (`closed`), only those that have run before are admitted.
    """

    seqs: int
    rule: Admission
    closed: bool = False

    @property
    def decision_is_stable(self) -> bool:
        return self.rule.decision_is_stable

    def admits(self, replica: Replica, seq: Sequence, chance: Callable[[], float]) -> bool:
        """Whether there is a slot, and the other rule admits."""
        if self.closed and seq.prefill_start_s is None:
            return False
        return replica.running < self.seqs and self.rule.admits(replica, seq, chance)

    def finished(self, output_tokens: int) -> None:
        """The other rule learns from it."""
        if isinstance(self.rule, LengthFeedback):
            self.rule.finished(output_tokens)


class PolicyScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """A policy, memory mode and rule of admission of the core, over the KV blocks of vLLM.

    Raises UsageError for an option of vLLM that a policy cannot decide over.
    """

    def __init__(self, vllm_config: Any, kv_cache_config: Any, *args: Any, **options: Any) -> None:
        for reason, holds in _not_supported(vllm_config, kv_cache_config):
            if holds:
                raise UsageError(f"A policy of bench cannot schedule {reason}")
        super().__init__(vllm_config, kv_cache_config, *args, **options)
        overrides = {key: value for key, value in vllm_config.additional_config.items() if key.startswith("bench_")}
        if unknown := sorted(overrides.keys() - OPTIONS.keys()):
            raise no_such("key of --additional-config", unknown[0], OPTIONS)
        policy_text, kv, admission = map(str, (OPTIONS | overrides).values())
        core = Core.of(policy_text, kv, admission)
        memory = make("kv", core.kv, block_tokens=self.block_size)
        policy = make("policies", core.policy)
        if memory.block_tokens != self.block_size:
            raise UsageError(
                f"'{core.kv}' has blocks of {memory.block_tokens} tokens and vLLM of {self.block_size}; "
                f"leave block_tokens away, or start vLLM with --block-size {memory.block_tokens}."
            )
        if isinstance(policy, Simulated):
            raise UsageError(f"'{core.policy}' {policy.simulated}, which vLLM does not; take another policy.")
        if isinstance(policy, Padding) and policy.pads:
            raise UsageError(
                f"'{core.policy}' keeps finished rows in the batch, which vLLM has not; give it pad=false."
            )
        self._slots = Slots(self.max_num_running_reqs, make("admission", core.admission))
        blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        self.replica = Replica(
            policy, memory, min(memory.blocks or blocks, blocks),
            admission=self._slots, chance=core.chance("replica", 0),
        )  # fmt: skip
        self._batch: Batch | None = None
        self._arrived = 0
        self._numbers: dict[str, int] = {}  # of the requests that the replica has: vLLM's id -> its own
        self._mirrored: dict[int, Any] = {}  # its own id -> vLLM's request
        self._aborted: list[int] = []  # while a batch is in flight
        self._refused: list[str] = []

    def add_request(self, request: Any) -> None:
        """Queue a request, here and on the replica; one that can never run ends with an error in the next step."""
        super().add_request(request)
        now_s, number = time.monotonic(), self._arrived
        self._arrived += 1
        why = _not_served(request) or self.replica.add(
            Request(number, now_s, request.num_prompt_tokens, request.max_tokens, priority=request.priority), now_s
        )
        if why is None:
            self._numbers[request.request_id], self._mirrored[number] = number, request
        else:
            self._refused.append(request.request_id)
            _log.warning("request %s is refused: %s", request.request_id, why)

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: ARG002  # of replicas that wait for one another
        """vLLM's form of the batch that the policy fills."""
        now_s = time.monotonic()
        self.kv_cache_manager.new_step_starts()
        self._batch = batch = None if self._is_paused() else self.replica.schedule(now_s)
        # a policy may take memory and have nothing to run after that: then the batch, and what it says, is gone
        gone = self.replica.waiting if batch is None else batch.preempted
        for request in [self._mirrored[seq.request.id] for seq in gone]:
            if request.status == RequestStatus.RUNNING:
                self.running.remove(request)
                self._preempt_request(request, now_s)
        if batch is None:
            return self._output({}, [], [], [], {})
        tokens: dict[str, int] = {}
        blocks: dict[str, Any] = {}
        new: list[Any] = []
        resumed: list[Any] = []
        running: list[Any] = []
        for seq, count in batch.items(iter(self.replica.decoding)):
            request = self._mirrored[seq.request.id]
            allocated = self.kv_cache_manager.allocate_slots(request, count, has_scheduled_reqs=False)  # no watermark
            assert allocated is not None, "the replica never gives out more blocks than vLLM has"
            tokens[request.request_id], blocks[request.request_id] = count, allocated
            if request.status == RequestStatus.RUNNING:
                running.append(request)
                continue
            (new if request.status == RequestStatus.WAITING else resumed).append(request)
            blocks[request.request_id] = self.kv_cache_manager.get_blocks(request.request_id)
            self._start(request, now_s)
        return self._output(tokens, new, resumed, running, blocks)

    def _is_paused(self) -> bool:
        """Whether nothing may run now; an idle replica starts its first sequence without asking the rule."""
        self._slots.closed = self.pause_state != PauseState.UNPAUSED
        head = next(iter(self.replica.waiting), None)
        started = self.replica.running or (head is not None and head.prefill_start_s is not None)
        return self.pause_state == PauseState.PAUSED_ALL or (self._slots.closed and not started)

    def _start(self, request: Any, now_s: float) -> None:
        """A waiting request runs from now on."""
        self.waiting.remove_request(request)
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        if request.prefill_stats and not request.num_preemptions:
            request.prefill_stats.set(request.num_prompt_tokens, 0, 0)
        if self.log_stats:
            request.record_event(EngineCoreEventType.SCHEDULED, now_s)

    def _output(
        self, tokens: dict[str, int], new: list[Any], resumed: list[Any], running: list[Any], blocks: dict[str, Any]
    ) -> Any:
        """What the workers are to run: `tokens` of each request, and the `blocks` that it has got."""
        total = sum(tokens.values())
        if total > self.max_num_scheduled_tokens:
            raise UsageError(
                f"The policy filled a batch of {total:,} tokens and the buffers of vLLM hold "
                f"{self.max_num_scheduled_tokens:,}; start vLLM with --max-num-batched-tokens {total}, "
                "or bound the policy."
            )
        if self.use_v2_model_runner:
            new, resumed = [*new, *resumed], []
        output = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData.from_request(
                    request, blocks[request.request_id].get_block_ids(),
                    list(request.all_token_ids) if self.use_v2_model_runner else None,
                ) for request in new
            ],
            scheduled_cached_reqs=self._make_cached_request_data(running, resumed, tokens, {}, blocks),
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=total,
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=self.finished_req_ids,
            free_encoder_mm_hashes=[],
            preempted_req_ids=self.reset_preempted_req_ids,
            new_block_ids_to_zero=self._get_new_block_ids_to_zero(),
        )  # fmt: skip
        if not self.use_v2_model_runner:
            self.prev_step_scheduled_req_ids.clear()
            self.prev_step_scheduled_req_ids.update(tokens)
        self._update_after_schedule(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Commit the step on both sides; what vLLM has ended before its last token ends on the replica too."""
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        batch, self._batch, now_s = self._batch, None, time.monotonic()
        if batch is not None:
            for seq in self.replica.commit(batch, (now_s,)):
                assert self._mirrored[seq.request.id].is_finished(), "both sides count the same tokens"
                self._forget(seq.request.id)
            for request_id in scheduler_output.num_scheduled_tokens:
                number = self._numbers.get(request_id)
                if number is not None and self._mirrored[number].is_finished() and number not in self._aborted:
                    self.replica.stop(number, now_s)
                    self._forget(number)
        for number in self._aborted:
            self._drop(number, now_s)
        self._aborted.clear()
        refused, self._refused = self._refused, []
        for request in super().finish_requests(refused, RequestStatus.FINISHED_ERROR):
            of_client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            of_client.outputs = [
                *of_client.outputs,
                EngineCoreOutput(request.request_id, [], finish_reason=request.get_finished_reason()),
            ]
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> Any:
        """End requests from outside: their clients have gone, or a stop string was found."""
        finished = super().finish_requests(request_ids, finished_status)
        for request in finished:
            number = self._numbers.get(request.request_id)
            if number is not None and self._batch is not None:
                self._aborted.append(number)
            elif number is not None:
                self._drop(number, time.monotonic())
        return finished

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """There is none; that running requests lose their memory too is left to the policy."""
        return not reset_running_requests and bool(super().reset_prefix_cache(False, reset_connector))

    def check(self) -> None:
        """Integrity: both sides have the same requests in the same state, and vLLM uses no block that is free here."""
        self.replica.check()
        sequences = (*self.replica.waiting, *self.replica.holders())
        assert len(sequences) == len(self._mirrored) == len(self._numbers) == len(self.running) + len(self.waiting)
        for seq in sequences:
            request = self._mirrored[seq.request.id]
            assert (request.num_computed_tokens, request.num_output_tokens) == (seq.computed, seq.emitted), seq
        assert self.kv_cache_manager.block_pool.get_num_free_blocks() >= self.replica.blocks.free

    def _drop(self, number: int, now_s: float) -> None:
        if number in self._mirrored:
            self.replica.cancel(number, now_s)
            self._forget(number)

    def _forget(self, number: int) -> None:
        del self._numbers[self._mirrored.pop(number).request_id]


def _not_supported(config: Any, kv_cache_config: Any) -> Iterable[tuple[str, bool]]:
    """What of vLLM a policy cannot decide over, as the end of a sentence with the remedy, and whether it is there."""
    scheduler, parallel, cache = config.scheduler_config, config.parallel_config, config.cache_config
    yield "steps ahead of the model; add --no-async-scheduling.", bool(scheduler.async_scheduling)
    yield "with vLLM's prefix cache; add --no-enable-prefix-caching.", bool(cache.enable_prefix_caching)
    yield "drafts of vLLM; leave --speculative-config away.", config.speculative_config is not None
    yield "several batches in flight; leave --pipeline-parallel-size away.", parallel.pipeline_parallel_size > 1
    yield "hand-offs of vLLM; leave --kv-transfer-config away.", config.kv_transfer_config is not None
    yield "adapters; leave --enable-lora away.", config.lora_config is not None
    yield "a model that generates no text; take another one.", config.model_config.runner_type != "generate"
    yield "images and audio; take a model of text.", bool(config.model_config.supports_multimodal_inputs)
    kinds = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    yield (
        "KV memory of several kinds; take a model with full attention in all layers.",
        (len(kinds) != 1 or not isinstance(kinds[0], FullAttentionSpec)),
    )


def _not_served(request: Any) -> str | None:
    """Why a single request cannot be served, or None."""
    if request.use_structured_output:
        return "structured output waits for its grammar, which a policy does not see"
    if request.resumable:
        return "a prompt that grows while it is served is not a request of the core"
    return None
