"""Computes the quantiles of the empirical lengths (`workloads/lengths/figures/*.json`) from raw length lists.

    python tools/make_lengths.py DATA_FOLDER

Quantiles, rank correlation and the table of rank deciles are those of `DATA_FOLDER/lengths/*.json`; the means
of the segments between quantiles come from the raw rows in `DATA_FOLDER/traces/`. LongBench is prepared
here, as DistServe does.
"""

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import make_coding_agent
import make_tool_calling
from workloads import traces
from workloads._pool import choose
from workloads._token_laws import TokenLaws, counted
from workloads.lengths._empirical import CHUNK, joint_of, side_of, tilt_of

FIGURES = Path(__file__).parents[1] / "workloads" / "lengths" / "figures"
CUT_TOKENS = np.arange(1900, 2049)  # DistServe: random.randint(1900, 2048), every value equally likely
KEEP_TOKENS = 2040  # DistServe: context plus answer stay within this


@dataclass(frozen=True, slots=True)
class Source:
    """Origin and description of a list."""

    name: str
    rows: str
    columns: tuple[str, str]
    summary: str | None
    texts: Mapping[str, str]
    max_total_tokens: int | None = None


_SHAREGPT_LICENCE = (
    "lengths: Apache-2.0 (the repository they are from); the ShareGPT texts behind them are of unclear licence"
)
SOURCES = (
    Source(
        "sharegpt_distserve",
        "sharegpt/distserve_sharegpt_opt_lengths.csv",
        ("prompt_len", "output_len"),
        "sharegpt_distserve_opt",
        {
            "preparation": "distserve: conversations with at least 3 turns; a random number of leading turns is the "
            "prompt, the next turn the answer; prompt + answer < 2,048 tokens; 1,600 requests of a real run (the "
            "paper gives means 755.5 / 200.3 for the whole set)",
            "tokenizer": "facebook/opt-13b (GPT-2 BPE and one BOS)",
            "source": "LLMServe/DistServe @ 20a1633ed6f2, simdistserve/benchmarks/alignment/data-ground-truth/"
            "opt-13b-sharegpt/distserve-c21d12-1600-16.exp",
            "licence": _SHAREGPT_LICENCE,
        },
        max_total_tokens=2047,
    ),
    Source(
        "sharegpt_first_turn",
        "sharegpt/sharegpt.csv",
        ("ContextTokens", "GeneratedTokens"),
        "sharegpt_first_turn_longchat",
        {
            "preparation": "first-turn: first human turn and first answer of each conversation of "
            "ShareGPT_V3_unfiltered_cleaned_split; no filter by length (the longest prompt has 241,402 tokens)",
            "tokenizer": "lmsys/longchat-13b-16k (Llama SentencePiece, BOS counted)",
            "source": "efeslab/Nanoflow @ d6b381e58110, datasets/traces/sharegpt.csv",
            "licence": _SHAREGPT_LICENCE,
        },
    ),
    Source(
        "sharegpt_multi_turn_8k",
        "sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        ("num_prefill_tokens", "num_decode_tokens"),
        "sharegpt_multiturn_8k_llama2",
        {
            "preparation": "multi-turn-8k: conversations with their history as the prompt, prompt + answer at most "
            "8,192 tokens (the ShareGPT row of the Sarathi-Serve paper)",
            "tokenizer": "Llama-2",
            "source": "project-etalon/etalon @ d5f18de15a22, data/processed_traces/"
            "sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
            "licence": _SHAREGPT_LICENCE,
        },
        max_total_tokens=8192,
    ),
    Source(
        "humaneval",
        "humaneval/humaneval_opt_lengths.csv",
        ("prompt_tokens", "solution_tokens"),
        "humaneval_opt",
        {
            "preparation": "prompt and canonical solution of the 164 problems, as DistServe uses them (it repeats "
            "them ten times)",
            "tokenizer": "facebook/opt (GPT-2 BPE and one BOS on each side)",
            "source": "openai/human-eval @ 6d43fb980f9f, data/HumanEval.jsonl.gz",
            "licence": "MIT",
        },
    ),
    Source(
        "longbench",
        "longbench/longbench_subset_lengths.csv",
        ("context_tokens", "answer_tokens"),
        None,
        {
            "preparation": "DistServe's: context cut to min(2,040 - answer, a random 1,900..2,048) tokens, the "
            "first reference answer is the output; only 3 of the 21 tasks (multi_news, multifieldqa_zh, "
            "passage_retrieval_zh, 200 rows each): not the whole of LongBench, whose means the paper gives as "
            "1,738.3 / 90.7",
            "tokenizer": "facebook/opt (GPT-2 BPE and one BOS)",
            "source": "Zefan-Cai/KVCache-Factory @ c97f9d706d63, data/LongBench (3 task files)",
            "licence": "MIT (the repositories); the data sets inside LongBench have licences of their own",
        },
        max_total_tokens=2047,
    ),
    Source(
        "azure",
        "azure2023/AzureLLMInferenceTrace_conv.csv",
        ("ContextTokens", "GeneratedTokens"),
        "azure2023_conv",
        {
            "preparation": "every request of one hour of a production conversation service (16 November 2023); no "
            "filter by length",
            "tokenizer": "not published",
            "source": "Azure/AzurePublicDataset @ b469a113cedc, data/AzureLLMInferenceTrace_conv.csv",
            "licence": "CC-BY-4.0",
        },
    ),
    Source(
        "agent_turns",
        "",
        ("", ""),
        None,
        {
            "preparation": "turns of the sessions' own agents whose prompt goes on from the one before: tokens that it "
            "has beside that prompt and its answer, at least 1 (11% have fewer), and tokens of the answer; 133 of 739 "
            "sessions",
            "tokenizer": "that of the recorded models, not published",
            "source": "callanjfox/kv-cache-tester @ 94f6046, traces/",
            "licence": "Apache-2.0",
        },
    ),
    Source(
        "tool_turns",
        "../agentic/office_work_8k.jsonl",
        ("", ""),
        None,
        {
            "preparation": "what a tool returned and the answer to it that calls the next tool; 41 of 8,192 sessions "
            "of office work, from two places of the file",
            "tokenizer": "not published",
            "source": "Applied-Compute/trie @ 2067a98, workloads/office_work_8k.jsonl",
            "licence": "Apache-2.0",
        },
    ),
    Source(
        "mooncake",
        "mooncake/conversation_trace.jsonl",
        ("input_length", "output_length"),
        "mooncake_conversation",
        {
            "preparation": "every request of one hour of Kimi's conversation service, with its history as the prompt; "
            "no filter by length (the longest prompt has 126,195 tokens); shared prefixes are not in the lengths",
            "tokenizer": "not published (Kimi)",
            "source": "kvcache-ai/Mooncake @ 3b5a59413395, FAST25-release/traces/conversation_trace.jsonl",
            "licence": "Apache-2.0 (the repository; the trace folder names none of its own)",
        },
    ),
    Source(
        "lmsys",
        "lmsys/lmsys.csv",
        ("ContextTokens", "GeneratedTokens"),
        "lmsys_chat_first_turn_longchat",
        {
            "preparation": "first user turn and first answer of 100,000 conversations of LMSYS-Chat-1M, shuffled; no "
            "filter by length",
            "tokenizer": "lmsys/longchat-13b-16k (Llama SentencePiece)",
            "source": "efeslab/Nanoflow @ d6b381e58110, datasets/traces/lmsys.csv",
            "licence": "lengths: Apache-2.0 (the repository they are from); the texts behind them are gated",
        },
    ),
    Source(
        "arxiv",
        "arxiv_summarization/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        ("num_prefill_tokens", "num_decode_tokens"),
        "arxiv_summarization_llama2",
        {
            "preparation": "article to abstract, prompt + output at most 4,096 tokens; that filter makes prompt and "
            "output anti-correlated, the task does not",
            "tokenizer": "Llama-2",
            "source": "microsoft/vidur @ 7d47513363ec, data/processed_traces/"
            "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
            "licence": "MIT (the repository)",
        },
        max_total_tokens=4096,
    ),
    Source(
        "bwb",
        "arxiv_summarization/bwb_stats_llama2_tokenizer_filtered_v2.csv",
        ("num_prefill_tokens", "num_decode_tokens"),
        "bwb_translation_llama2",
        {
            "preparation": "translation of books (Bilingual Web Books), prompt + output at most 4,096 tokens",
            "tokenizer": "Llama-2",
            "source": "project-etalon/etalon @ d5f18de15a22, data/processed_traces/"
            "bwb_stats_llama2_tokenizer_filtered_v2.csv",
            "licence": "Apache-2.0 (the repository)",
        },
        max_total_tokens=4096,
    ),
    Source(
        "deepseek_r1",
        "servegen/reason/deepseek-r1",
        ("", ""),
        None,
        {
            "preparation": "1,000,000 requests drawn from the published laws of the clients of one day (73, some of "
            "them silent), each client and window by its share of the requests; output is reasoning and answer; prompt "
            "and output are independent within a client and window, for lack of joint counts",
            "tokenizer": "that of DeepSeek-R1",
            "source": "alibaba/ServeGen @ f891d1189eb3, data/reason/deepseek-r1",
            "licence": "Apache-2.0",
        },
    ),
)
DRAWN = 1_000_000
"""Requests of a list that is known by its laws only."""


def main(data: Path) -> None:
    """Write one JSON file per list."""
    FIGURES.mkdir(exist_ok=True)
    for source in SOURCES:
        text = json.dumps(figures(source, data), indent=1, sort_keys=True)
        (FIGURES / f"{source.name}.json").write_text(one_line_lists(text) + "\n", encoding="utf-8")
        sys.stdout.write(f"{source.name}\n")


def figures(source: Source, data: Path) -> dict[str, object]:
    """Parameters of the sampler of a list, and its provenance."""
    prompt, output, rows = _lengths(source, data)
    summary = json.loads((data / "lengths" / f"{source.summary}.json").read_text()) if source.summary else None
    joint = summary["joint"] if summary else joint_of(prompt, output)
    deciles = joint["rank_decile_table_rows_prompt_cols_output"]
    sides = {"prompt": side_of(prompt), "output": side_of(output)}
    if summary and any(side["quantiles"] != summary[name]["quantiles_0_100"] for name, side in sides.items()):
        raise ValueError("the raw rows and the stored quantiles disagree")
    return {
        **source.texts,
        "rows": rows,
        "max_total_tokens": source.max_total_tokens,
        "spearman": joint["spearman"],
        "rank_deciles": deciles,
        "tilt": tilt_of(sides, deciles, source.max_total_tokens, joint["spearman"]),
        **sides,
    }


def _lengths(source: Source, data: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """(N,) prompts, (N,) outputs, and the number of rows of the list."""
    if source.name == "agent_turns":
        new, answers = make_coding_agent.new_and_answer(traces.read(str(data / "agentic" / "weka")))
        return new, answers, len(new)
    if source.name == "tool_turns":
        tools, answers = make_tool_calling.new_and_answer(make_tool_calling.read(data / "traces" / source.rows))
        return tools, answers, len(tools)
    if source.name == "deepseek_r1":
        return *_of_clients(str(data / "traces" / source.rows)), DRAWN
    with (data / "traces" / source.rows).open(encoding="utf-8", newline="") as file:
        rows = map(json.loads, file) if source.rows.endswith(".jsonl") else csv.DictReader(file)
        pairs = [(int(row[source.columns[0]]), int(row[source.columns[1]])) for row in rows]
    prompt, output = np.array(pairs).T
    if source.name == "longbench":
        cut = np.minimum((KEEP_TOKENS - output)[:, None], CUT_TOKENS)  # (N, 149)
        return np.minimum(prompt[:, None], cut).ravel(), np.repeat(output, len(CUT_TOKENS)), len(pairs)
    return prompt, output, len(pairs)


def _of_clients(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """(DRAWN,) prompts and outputs of a pool: client and window by their share of the requests, then each from its law.

    Drawn in the chunks of other lengths, so that the list stays what it was.
    """
    pool = choose(folder, rate_rps=None, clients=None, start_s=0.0, usable=counted)
    laws, rng = TokenLaws.of(pool.clients), np.random.default_rng(0)
    shares = np.zeros(round(float(laws.prompt[0][-1])))
    for i, client in enumerate(pool.clients):
        np.add.at(shares, laws.of_requests(np.full(len(client.start_s), i), client.start_s), client.rate_rps)
    edges = np.cumsum(shares / shares.sum())
    chunks = [
        laws.draw(np.searchsorted(edges, rng.random(CHUNK) * edges[-1], side="right"), rng)
        for _ in range(-(-DRAWN // CHUNK))
    ]
    prompts, outputs = (np.concatenate([getattr(chunk, side) for chunk in chunks]) for side in ("prompts", "outputs"))
    return prompts[:DRAWN], outputs[:DRAWN]


def one_line_lists(text: str) -> str:
    """JSON with every list of numbers on a line of its own."""
    import re

    return re.sub(r"\[[^\[\]]*\]", lambda found: " ".join(found.group().split()), text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
