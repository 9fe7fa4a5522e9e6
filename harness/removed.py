"""Names that earlier versions accepted, each with what to use instead: the sentence that refuses it says so."""

REMOVED = {
    ("command", "policy"): "'bench sweep --over policy=A,B --over backend=engine,sim' measures policies on both clocks",
    ("command", "import-command"): "docs/guide/import.md has the flags of other load generators beside those of bench",
    ("format", "aiperf"): "write 'vllm' or 'llm-d', or 'parquet' for a program of your own",
    ("format", "guidellm"): "write 'vllm' or 'llm-d', or 'parquet' for a program of your own",
    ("figure", "gantt"): "'bench report RUN --format perfetto' shows single requests, phase by phase",
    ("option of bench theory", "--KEY"): "parameters stand with the name of the form, and --over varies them",
    ("section", "sliders"): "'bench slo' scores stored requests under other bounds; figures are in the section 'slos'",
    ("option", "--max-rate"): "'bench place' searches each deployment in the steady state, to --max-requests",
    ("option", "--width"): "'bench place' searches each deployment in the steady state, to --max-requests",
    ("argument", "compat"): "'bench explain distserve' says where the numbers of DistServe's simulator are checked",
    ("policy", "distserve-sim"): "'--policy vllm-v0' runs prompts first too",
    ("arrivals", "simdistserve"): "'--arrivals poisson' has the same gaps of other draws",
}
"""What it was, and its name: what takes its place, as the end of a sentence."""
