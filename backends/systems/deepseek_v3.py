"""DeepSeek-V3: experts spread over so many GPUs that each has enough tokens, with redundant copies of the hottest.

Source: DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.4; Insights into DeepSeek-V3, arXiv 2505.09343. Its
units of 32 GPUs for prefill and 320 for decode are claimed to balance load between GPUs. `bench theory moe` and
`exchange` have the arithmetic, `bench theory experts` draws the load.
"""
