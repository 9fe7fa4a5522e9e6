"""A workload or a trace that cannot be is refused in one sentence, whatever was typed."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np

from workloads.fit.model import Model, Service
from workloads.fit.process import Cox
from workloads.lengths import _empirical

STAMPS = [f"{i**1.5:.6f},{i + 1},1" for i in range(12)]
FILES = {
    "plain.csv": "\n".join(["at_s,prompt_tokens,output_tokens", *STAMPS]),
    "who.csv": "who,ts,in,out,kind\nann,1000,5,6,chat\nbob,1500,7,8,code\nann,1750,9,1,chat\n",
    "agents.jsonl": '{"session_id": "a", "timestamp": 0, "input_length": 300, "output_length": 50}\n'
    '{"session_id": "a", "delay": 2000, "input_length": 100, "output_length": 50}\n'
    '{"session_id": "b", "timestamp": 1000, "input_length": 40, "output_length": 2}\n',
    "prompts.jsonl": '{"messages": [{"role": "user", "content": "How far?"}], "max_tokens": 3}\n',
    "broken.json": '{"a": 1}',
    "pool/chunk-0-trace.csv": "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n",
    "pool/chunk-1-trace.csv": "0,0,0,,0,0\n600,0,0,,0,0\n",
}


def test_a_workload_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, refusals: Callable[..., None]) -> None:
    """A typing mistake or a contradiction would end in a traceback, or be settled in silence: a run of another load."""
    (tmp_path / "pool").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(FILES["prompts.jsonl"].encode()))
    lengths = _empirical.measure(np.arange(1, 401), np.arange(1, 401))
    services = [Service(tag, Cox(2.0, 0.7), lengths) for tag in ("chat", "api")]
    Model(tuple(services), {"file": "made"}, {}).save(tmp_path / "model.json")

    refusals("wrong-workload.txt", "--backend", "sim")
