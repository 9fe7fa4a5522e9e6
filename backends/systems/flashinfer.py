"""FlashInfer: attention over KV of unequal lengths in chunks that keep all thread blocks of a GPU busy.

Source: Ye et al., FlashInfer: Efficient and Customizable Attention Engine for LLM Inference Serving, MLSys 2025;
include/flashinfer/attention/scheduler.cuh. It claims an ITL that is 29 % to 69 % lower than that of compiler backends.
`bench theory attention` has the makespan with and without its plan.
"""
