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
    ("option", "--kv"): "write it as an argument of the backend, '--backend sim:kv=reserve-oracle'",
    ("option", "--admission"): "write it as an argument of the backend, '--backend sim:admission=past-future'",
    ("option", "--preempt"): "write it as an argument of the backend, '--backend sim:preempt=swap'",
    ("option", "--lora"): "write it as an argument of the backend, '--backend sim:lora=[slots=8,rank=16]'",
    ("option", "--speculate"): "write it as an argument of the backend, '--backend sim:speculate=[k=4,alpha=0.7]'",
    ("option", "--dp"): "write it as an argument of the backend, '--backend sim:dp=2'",
    ("option", "--ep"): "write it as an argument of the backend, '--backend sim:ep=8'",
    ("option", "--handoff"): "write it as an argument of the backend, '--backend sim:handoff=push'",
    ("option", "--link"): "write it as an argument of the backend, '--backend sim:link=25Gbps'",
    ("option", "--fail"): "write it as an argument of the backend, '--backend sim:fail=replica:1@60s..90s'",
    ("argument", "compat"): "'bench explain distserve' says where the numbers of DistServe's simulator are checked",
    ("policy", "distserve-sim"): "'--policy vllm-v0' runs prompts first too",
    ("arrivals", "simdistserve"): "'--arrivals poisson' has the same gaps of other draws",
}
"""What it was, and its name: what takes its place, as the end of a sentence."""
