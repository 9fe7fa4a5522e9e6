"""Makes the golden logits: a small random model of each family, run by Hugging Face transformers in float64.

Run once, in an environment of its own, never by the tests:

    python -m venv hf && hf/bin/pip install torch transformers
    hf/bin/python tests/golden/logits/make.py

Each folder gets config.json, weights (Llama in float32, Qwen2 in bfloat16 in several files, Mistral in float16),
and golden.npz with `token_ids` (T,) and `logits` (T, V) float64. versions.json says what made them.
"""

import json
import platform
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
SHAPE = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TOKENS = 150


def models() -> dict[str, tuple[transformers.PretrainedConfig, torch.dtype, str]]:
    """Folder -> config, stored type, largest file."""
    llama = transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3, tie_word_embeddings=False)
    qwen2 = transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True)
    mistral = transformers.MistralConfig(**SHAPE, sliding_window=24, tie_word_embeddings=False, head_dim=16)
    return {
        "llama": (llama, torch.float32, "10MB"),
        "qwen2": (qwen2, torch.bfloat16, "40KB"),
        "mistral": (mistral, torch.float16, "10MB"),
    }


def randomise(model: torch.nn.Module) -> None:
    """Weights of variance 1/inputs, gains and biases away from one and zero, so that every part matters."""
    for name, weight in sorted(model.named_parameters()):
        if "norm" in name:
            weight.copy_(1 + 0.2 * torch.randn_like(weight))
        elif name.endswith("bias"):
            weight.copy_(0.2 * torch.randn_like(weight))
        else:
            weight.copy_(torch.randn_like(weight) * (1.0 if "embed" in name else weight.shape[-1] ** -0.5))


@torch.no_grad()
def make(name: str, config: transformers.PretrainedConfig, stored: torch.dtype, shard: str) -> None:
    """Write one folder."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    randomise(model)
    model.to(stored).save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    token_ids = torch.randint(0, config.vocab_size, (1, TOKENS))
    # Note: read again, because `to` has also rounded the rotary frequencies, which are not stored.
    judge = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    logits = judge.eval()(token_ids).logits[0].numpy()
    np.savez_compressed(folder / "golden.npz", token_ids=token_ids[0].numpy(), logits=logits)


def main() -> None:
    """Write all folders and the versions that made them."""
    torch.manual_seed(20240917)
    for name, (config, stored, shard) in models().items():
        make(name, config, stored, shard)
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
