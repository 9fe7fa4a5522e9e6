"""BurstGPT: traffic of ChatGPT and GPT-4 at a university, whose API service has bursts that no Poisson process has.

Source: Wang et al., BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems, arXiv 2401.17644;
HPMLL/BurstGPT. `--arrivals burstgpt` draws such traffic, `bench trace download burstgpt-1` fetches it.
"""
