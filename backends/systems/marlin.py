"""MARLIN: weights of 4 bits that are multiplied as fast as they are read, up to batches of tens of sequences.

Source: Frantar et al., MARLIN: Mixed-Precision Auto-Regressive Parallel Inference on Large Language Models, PPoPP 2025;
IST-DASLab/marlin. It claims speed-ups near the ideal 3.87 times for batches of up to 16 to 32, and 2.8 times in vLLM.
`bench theory weights` has the ideal curve, `roofline:weight_bits=4.125` the steps of a model with such weights.
"""
