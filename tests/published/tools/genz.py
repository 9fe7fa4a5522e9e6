"""GenZ: an analytical model of one prefill and one decode step, at the peaks of a GPU.

It has no queue and no mixed steps: TTFT is the prefill of one prompt, TPOT a decode step of all clients in the middle
of their answers. One number of bits holds for all of a model.
"""

REQUIREMENTS = ("genz-llm==0.0.16",)
RELEASED = "2025-03"
MEAN_LENGTH = 0.9
GPUS = {"h100": "H100_GPU", "b200": "GB200", "gb200": "GB200", "mi300x": "MI300X"}
"""Its list has no B200; the chips of GB200 are those."""
MODELS = {
    "llama3.1-8b": "llama3_8b",
    "llama3.1-70b": "meta-llama/meta-llama-3.1-70b",
    "deepseek-r1": "deepseek-ai/DeepSeek-V3-Base",
}
BITS = {"nan": "bf16", "fp8": "fp8", "fp4": "fp4"}


def predict(row):
    """(TTFT, TPOT) in seconds."""
    if row["gpu"] not in GPUS:
        return f"no GPU {row['gpu']}"
    if row["model"] not in MODELS:
        return f"no model {row['model']}"
    if row["dp"] > 1:
        return "no data-parallel attention"
    from GenZ import decode_moddeling, prefill_moddeling

    tp = row["tp"] // row["ep"]
    prompt, output = (round(MEAN_LENGTH * row[name]) for name in ("prompt", "output"))
    common = {
        "model": MODELS[row["model"]], "system_name": GPUS[row["gpu"]], "bits": BITS[row["precision"]],
        "tensor_parallel": tp, "expert_parallel": row["ep"],
        "parallelism_heirarchy": f"TP{{{tp}}}_EP{{{row['ep']}}}_PP{{1}}",
    }  # fmt: skip
    prefill = prefill_moddeling(batch_size=1, input_tokens=prompt, **common)
    decode = decode_moddeling(batch_size=row["clients"], Bb=1, input_tokens=prompt, output_tokens=output // 2, **common)
    return prefill["Latency"] / 1e3, decode["Latency"] / 1e3
