"""Make the model that real servers are tried with: `python tiny_model.py FOLDER VOCABULARY`.

A Llama of random weights (hidden 256, 2 layers, 4 heads of 64, 2 KV heads, 1.7 M parameters, float32) over made-up
syllables: as a Hugging Face folder, FOLDER, and as FOLDER/model.gguf for llama.cpp. Nothing is downloaded, and the
same arguments give the same bytes. Two vocabularies of 1,024 tokens:

`ascii`  every token is a whole piece of printable text: as many pieces of text as tokens.
`bytes`  the 256 bytes are tokens too: text breaks off inside characters, is held back, comes several tokens at once.

The row of the head for the end of the sequence is that of one ordinary token, a little longer: a greedy answer ends
where this token would have been the choice, and goes on with it under `ignore_eos`.
"""

import json
import struct
import sys
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SEED = 20
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, CONTEXT = 1024, 256, 2, 4, 2, 64, 512, 8192
EPSILON, THETA = 1e-5, 10000.0
SPECIALS = ("<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>")  # the first tokens, in this order
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SYLLABLES = tuple(a + b for a, b in product("bdfgklmnprstvz", "aeiou"))
SPACE, NEWLINE = "\u0120", "\u010a"  # how byte-level vocabularies write these two bytes


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2): itself where it can be printed."""
    letters, spare = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


def vocabulary(kind: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens in the order of their ids, and the merges that make those of more than one letter, best first."""
    letters = byte_letters()
    base = letters if kind == "bytes" else [*letters[32:127], NEWLINE]
    syllables = [tuple(s) for s in SYLLABLES]
    merges = [(a, b) for a, b in syllables] + [(SPACE, s) for s in SYLLABLES]
    pairs = [*product([SPACE + s for s in SYLLABLES], SYLLABLES), *product(SYLLABLES, SYLLABLES)]
    room = VOCAB - len(SPECIALS) - len(base) - len(merges)
    chosen = np.random.default_rng(SEED).choice(len(pairs), size=room, replace=False)
    merges += [pairs[i] for i in sorted(chosen.tolist())]
    return [*SPECIALS, *base, *(a + b for a, b in merges)], merges


def weights(kind: str) -> dict[str, np.ndarray]:
    """Float32 tensors by their Hugging Face names; matrices are (outputs, inputs)."""
    rng = np.random.default_rng([SEED, kind == "bytes"])

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale * columns**-0.5)

    def gain() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(HIDDEN)).astype(np.float32)

    made = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, HIDDEN**0.5)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        made[at + "input_layernorm.weight"] = gain()
        made[at + "self_attn.q_proj.weight"] = matrix(HEADS * HEAD_DIM, HIDDEN)
        made[at + "self_attn.k_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        made[at + "self_attn.v_proj.weight"] = matrix(KV_HEADS * HEAD_DIM, HIDDEN)
        made[at + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM)
        made[at + "post_attention_layernorm.weight"] = gain()
        made[at + "mlp.gate_proj.weight"] = matrix(INNER, HIDDEN)
        made[at + "mlp.up_proj.weight"] = matrix(INNER, HIDDEN)
        made[at + "mlp.down_proj.weight"] = matrix(HIDDEN, INNER)
    made["model.norm.weight"] = gain()
    head = matrix(VOCAB, HIDDEN)
    head[: len(SPECIALS)] = 0  # never the greedy choice among a thousand
    head[0] = 1.02 * head[len(SPECIALS) + ord("a")]  # the end comes where this token would
    return made | {"lm_head.weight": head}


def write_folder(folder: Path, kind: str, tensors: Mapping[str, np.ndarray]) -> None:
    """The Hugging Face folder: weights, configuration, tokenizer, chat template."""
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    tokens, merges = vocabulary(kind)
    for name, content in (
        ("config.json", configuration()),
        ("generation_config.json", {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1, "do_sample": False}),
        ("tokenizer.json", tokenizer(tokens, merges)),
        ("tokenizer_config.json", {
            "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0], "pad_token": SPECIALS[1],
            "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
        }),
    ):  # fmt: skip
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def configuration() -> dict[str, object]:
    """The fields of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "hidden_act": "silu",
        "max_position_embeddings": CONTEXT, "rms_norm_eps": EPSILON, "rope_theta": THETA,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "bos_token_id": None,
        "eos_token_id": 0, "pad_token_id": 1, "torch_dtype": "float32",
    }  # fmt: skip


def tokenizer(tokens: list[str], merges: list[tuple[str, str]]) -> dict[str, object]:
    """The fields of tokenizer.json: byte-level BPE with GPT-2's cutting into words."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": name} | plain for i, name in enumerate(SPECIALS)],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [list(pair) for pair in merges],
        },
    }  # fmt: skip


GGUF_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
GGUF_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip


def write_gguf(path: Path, kind: str, tensors: Mapping[str, np.ndarray]) -> None:
    """The same model as one GGUF file, version 3 (ggml-org/ggml docs/gguf.md)."""
    renamed = {gguf_name(name): interleaved(name, tensor) for name, tensor in tensors.items()}
    facts = metadata(kind)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(renamed), len(facts))
    head += b"".join(text(key) + value for key, value in facts.items())
    offset = 0
    for name, tensor in renamed.items():
        sizes = tensor.shape[::-1]  # the fastest first
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset)  # 0 is float32
        offset += padded(tensor.nbytes)
    with path.open("wb") as file:
        file.write(head.ljust(padded(len(head)), b"\0"))
        for tensor in renamed.values():
            file.write(tensor.tobytes().ljust(padded(tensor.nbytes), b"\0"))


def padded(size_bytes: int) -> int:
    """The next multiple of GGUF's alignment."""
    return -(-size_bytes // 32) * 32


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    if name in GGUF_ENDS:
        return GGUF_ENDS[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


def interleaved(name: str, tensor: np.ndarray) -> np.ndarray:
    """Rows of queries and keys as llama.cpp rotates them, neighbours in pairs; Hugging Face pairs the halves."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor
    halves = tensor.reshape(-1, 2, HEAD_DIM // 2, HIDDEN)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)


def metadata(kind: str) -> dict[str, bytes]:
    """The facts that llama.cpp reads, each as the bytes of its type and value."""
    tokens, merges = vocabulary(kind)
    kinds = [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS))  # control, normal
    return {
        "general.architecture": typed_text("llama"), "general.name": typed_text(f"tiny-{kind}"),
        "general.alignment": u32(32), "general.file_type": u32(0),
        "llama.context_length": u32(CONTEXT), "llama.embedding_length": u32(HIDDEN), "llama.block_count": u32(LAYERS),
        "llama.feed_forward_length": u32(INNER), "llama.attention.head_count": u32(HEADS),
        "llama.attention.head_count_kv": u32(KV_HEADS), "llama.attention.layer_norm_rms_epsilon": f32(EPSILON),
        "llama.rope.dimension_count": u32(HEAD_DIM), "llama.rope.freq_base": f32(THETA), "llama.vocab_size": u32(VOCAB),
        "tokenizer.ggml.model": typed_text("gpt2"), "tokenizer.ggml.pre": typed_text("gpt-2"),
        "tokenizer.ggml.tokens": texts(tokens), "tokenizer.ggml.token_type": struct.pack("<IIQ", 9, 5, VOCAB)
        + struct.pack(f"<{VOCAB}i", *kinds), "tokenizer.ggml.merges": texts(f"{a} {b}" for a, b in merges),
        "tokenizer.ggml.eos_token_id": u32(0), "tokenizer.ggml.padding_token_id": u32(1),
        "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 0), "tokenizer.chat_template": typed_text(TEMPLATE),
    }  # fmt: skip


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed_text(value: str) -> bytes:
    return struct.pack("<I", 8) + text(value)


def texts(values: Iterable[str]) -> bytes:
    raw = [text(value) for value in values]
    return struct.pack("<IIQ", 9, 8, len(raw)) + b"".join(raw)


def u32(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def f32(value: float) -> bytes:
    return struct.pack("<If", 6, value)


def words(count: int, seed: int) -> str:
    """Text of the language that this vocabulary knows: `count` words of one to four syllables."""
    rng = np.random.default_rng(seed)
    return " ".join("".join(rng.choice(SYLLABLES, rng.integers(1, 5))) for _ in range(count))


def build(folder: Path, kind: str) -> Path:
    """Both forms of the model in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = weights(kind)
    write_folder(folder, kind, tensors)
    write_gguf(folder / "model.gguf", kind, tensors)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2])
