"""vLLM: KV memory in blocks that are taken on demand, so that nearly all of it holds tokens and batches are larger.

Source: Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, SOSP 2023; the
announcement of 2023. Policies and memory are those that everybody runs: `vllm-v0`, `vllm-v1`, `paged`. It claims 14 to
24 times the throughput of Hugging Face Transformers.
"""
