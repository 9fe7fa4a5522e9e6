"""Tilus: kernels for weights of any width from 1 to 8 bits.

Source: Ding et al., Tilus: A Virtual Machine for Arbitrary Low-Precision GPGPU Computation in LLM Serving, arXiv
2504.12984. It claims to be 1.03 times as fast as MARLIN at 4 bits. `bench theory weights` has the bound of every width.
"""
