"""One engine without processes: its loop over an executor that is called where it stands, on a clock of the test."""

from math import inf

from backends.engine_process.cluster import EngineCluster
from backends.engine_process.executor_processes import Copied, Ran, StepRunner
from backends.engine_process.generation import Answers
from backends.serving.cluster import Cluster
from harness.registry import make


def serve_alone(replica, executor, token_ids, requests, params=None, temperature=0.0, hierarchy=None):
    """All turns of an engine over these requests, which come when they are scheduled.

    An executor that has a clock, `now_s`, says when its steps are over; those of another one take 10 ms. Copies from
    and to tiers take 4 ms.
    """
    answers = Answers(token_ids, executor.vocab_size, executor.max_tokens, temperature)
    runner, turns = StepRunner(executor), []

    def send(_, message):
        start_s = engine.loop.now_s
        if hasattr(executor, "now_s"):
            executor.now_s = start_s
        answer = runner.perform(message)
        if isinstance(answer, Ran):
            engine.ran(0, answer.sampled, getattr(executor, "now_s", start_s + 0.01))
        elif isinstance(answer, Copied):
            engine.copied(answer.number, start_s + 0.004)

    cluster = Cluster([replica], make("routers", "round-robin"), hierarchy=hierarchy)
    engine = EngineCluster(cluster, answers, send)
    turns += [no for r in requests if (no := engine.arrive(r, (params or {}).get(r.id), r.scheduled_s))]
    return turns + list(turns_of(engine))


def turns_of(engine):
    """What an engine does until nothing is left to do."""
    while engine.next_s < inf:
        for turn in engine.advance(engine.next_s):
            for replica in engine.cluster.replicas:
                if replica.in_flight is None:
                    replica.check()
            yield turn


def tokens_of(turns):
    """Tokens by request."""
    answered = {}
    for turn in turns:
        for request_id, token in zip(turn.tokens, turn.token_ids, strict=True):
            answered.setdefault(request_id, []).append(token)
    return answered
