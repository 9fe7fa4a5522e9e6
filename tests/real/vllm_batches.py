"""vLLM's scheduler under a policy, without a model: `python vllm_batches.py MODEL < cases.json`, run by vLLM's Python.

Each case has the options of the policy, the size of the memory and the requests. Printed is what vLLM would run in each
step: the tokens of each request, who was preempted, and whose answers were over.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import KVCacheConfig
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from backends.vllm.scheduler import PolicyScheduler


def scheduler(model: str, calls: dict[str, Any]) -> PolicyScheduler:
    """The adapter over `blocks` blocks of memory that no tensor stands behind."""
    config = EngineArgs(
        model=model, max_model_len=2048, max_num_seqs=calls["seqs"], max_num_batched_tokens=calls["tokens"],
        block_size=calls["block"], enable_prefix_caching=False, async_scheduling=False, dtype="float32",
        enforce_eager=True, scheduler_cls="backends.vllm.scheduler.PolicyScheduler",
        additional_config=calls["options"], **calls.get("vllm", {}),
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = calls["blocks"] + 1  # one of vLLM's blocks is never used
    spec = FullAttentionSpec(block_size=calls["block"], num_kv_heads=2, head_size=64, dtype=torch.float32)
    memory = KVCacheConfig(calls["blocks"] + 1, [], [KVCacheGroupSpec(["layer"], spec)])
    return PolicyScheduler(
        config, memory, structured_output_manager=StructuredOutputManager(config), block_size=calls["block"],
        log_stats=True,
    )  # fmt: skip


def run(made: PolicyScheduler, calls: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps. A request (step, prompt, output, end, gone) comes before its step; its answer ends after `end` tokens
    where that is not None, and its client goes before step `gone`. New ones wait from step `pause` on until `go`."""
    requests = {}
    for number, (_, prompt, output, _, _) in enumerate(calls["requests"]):
        params = SamplingParams(max_tokens=output, temperature=0.0)
        params.update_from_generation_config({}, 0)
        requests[str(number)] = Request(str(number), [7] * prompt, params, None)
    steps: list[dict[str, Any]] = []
    for step in range(calls["steps"]):
        for number, (at, _, _, _, gone) in enumerate(calls["requests"]):
            if gone == step:
                made.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
            if at == step:
                made.add_request(requests[str(number)])
        if step in (calls["pause"], calls["go"]):
            made.set_pause_state(PauseState.PAUSED_NEW if step == calls["pause"] else PauseState.UNPAUSED)
        if not made.has_requests():
            if not made.requests and all(at <= step for at, *_ in calls["requests"]):
                break
            steps.append({"tokens": {}, "preempted": [], "ended": []})
            continue
        output = made.schedule()
        tokens = output.num_scheduled_tokens
        sampled = []
        for request_id in tokens:
            request, end = requests[request_id], calls["requests"][int(request_id)][3]
            last = end is not None and request.num_output_tokens + 1 == end
            sampled.append([] if request.is_prefill_chunk else [0 if last else 8])
        before = set(made.requests)
        made.update_from_output(
            output, ModelRunnerOutput(req_ids=[*tokens], req_id_to_index={r: i for i, r in enumerate(tokens)},
                                      sampled_token_ids=sampled, logprobs=None, prompt_logprobs_dict={},
                                      pooler_output=[]),
        )  # fmt: skip
        made.check()
        steps.append({
            "tokens": {int(request_id): count for request_id, count in tokens.items()},
            "preempted": sorted(map(int, output.preempted_req_ids or ())),
            "ended": sorted(int(request_id) for request_id in before - set(made.requests)),
        })  # fmt: skip
    return steps


if __name__ == "__main__":
    print(json.dumps([run(scheduler(sys.argv[1], case), case) for case in json.load(sys.stdin)]))
