"""RLMServing: reasoning models are not served like chat: memory that rises and falls, stragglers, two first tokens.

Source: RLMServing, ICLR 2026; lqinfdim/RLMServing. It claims these differences by figures of its own traces of GSM8K,
MATH-500, AIME and GPQA. `--workload reasoning` has traffic of that form.
"""
