"""What aiconfigurator and AISimulate call the models, GPUs and formats of rows; both have the same tables."""

SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm", "gb200": "gb200"}
ENGINES = ("vllm", "sglang", "trtllm")
CHECKPOINTS = {
    ("deepseek-r1", "fp8"): "deepseek-ai/DeepSeek-R1",
    ("deepseek-r1", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",  # the shape of R1 in NVFP4
    ("gpt-oss-120b", "fp4"): "openai/gpt-oss-120b",
    ("kimi-k2.5", "fp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("kimi-k2.5", "int4"): "moonshotai/Kimi-K2.5",
    ("llama3.1-8b", "fp8"): "meta-llama/Meta-Llama-3.1-8B",
    ("llama3.1-8b", "nan"): "meta-llama/Meta-Llama-3.1-8B",
    ("llama3.1-70b", "fp8"): "meta-llama/Meta-Llama-3.1-70B",
    ("llama3.1-70b", "fp4"): "meta-llama/Meta-Llama-3.1-70B",
    ("minimax-m2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("minimax-m2.5", "fp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("qwen3-235b-a22b-fp8", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("qwen3-32b", "fp4"): "Qwen/Qwen3-32B",
}
"""The checkpoint that was served, or one of its shape and formats; both tools read the formats from it."""
DENSE = ("llama3.1-8b", "llama3.1-70b", "qwen3-32b")
"""Models whose checkpoints above are in bf16, so that the format is named."""
MODES = {"bf16": "bfloat16", "fp8": "fp8", "nvfp4": "nvfp4"}


def described(row):
    """Model, system, formats and sizes of a row, or why neither tool has it."""
    if row["gpu"] not in SYSTEMS:
        return f"no GPU {row['gpu']}"
    if row["engine"] not in ENGINES:
        return f"no engine {row['engine']}"
    checkpoint = CHECKPOINTS.get((row["model"], row["precision"]))
    if checkpoint is None:
        return f"no {row['model']} in {row['precision']}"
    formats = dict(row["formats"])
    return {
        "model": checkpoint,
        "system": SYSTEMS[row["gpu"]],
        "gemm": MODES[formats["linear"]] if row["model"] in DENSE else None,
        "kv": MODES[formats["kv"]],
        "experts": "w4a8_mxfp4_mxfp8" if formats.get("experts") == "mxfp4-fp8" else None,  # else as the checkpoint says
        "moe": None if row["model"] in DENSE else (row["tp"] * row["dp"] // row["ep"], row["ep"]),
    }
