"""llama.cpp's own server on the loopback: `python llama_cpp_server.py MODEL.gguf ALIAS SLOTS CONTEXT [PING_S]`.

Prints its address when it listens, and ends when its standard input closes, hence with its parent process.
"""

import os
import sys

import xllamacpp


def main(model: str, alias: str, slots: int, context_tokens: int, ping_s: int = 30) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = slots
    params.n_ctx = slots * context_tokens  # the slots share it
    params.kv_unified = False
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # as exact as the other servers
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.endpoint_metrics = params.endpoint_slots = True
    params.ui = False
    params.warmup = False
    params.sse_ping_interval = ping_s
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)  # without its tear-down, which waits for requests


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *map(int, sys.argv[5:]))
