"""Names that earlier versions accepted, each with what to use instead: the sentence that refuses it says so."""

ARGUMENTS = {
    "kv": "reserve-oracle",
    "admission": "past-future",
    "preempt": "swap",
    "lora": "[slots=8,rank=16]",
    "speculate": "[k=4,alpha=0.7]",
    "dp": "2",
    "ep": "8",
    "handoff": "push",
    "link": "25Gbps",
    "fail": "replica:1@60s..90s",
}
"""Arguments of the simulator and the engine that were options, each with an example; stored runs hold them as such."""

SERVER_ARGUMENTS = {"output-lengths": "server", "probe": "off"}
"""Arguments of a server that were options, as above."""

SERVER = ("--url", "--target", "--base-url", "--endpoint", "--host", "--server", "--address", "--api-base")
"""What other tools call the server to measure."""

REMOVED = {
    ("command", "policy"): "'bench sweep --over policy=A,B --over backend=engine,sim' measures policies on both clocks",
    ("command", "import-command"): "docs/guide/import.md has the flags of other load generators beside those of bench",
    ("fault", "delay"): "'--fault slow=5%' delays every token, and '--backend null:ttft=1s,itl=50ms' sets their times",
    ("fault", "stall"): "'--fault reset:token=5' ends an answer at a token",
    ("fault", "close"): "'--fault reset:token=5' ends an answer at a token",
    ("fault", "malformed"): "'--fault reset:token=5' ends an answer at a token",
    ("fault", "503"): "'--fault 429:retry_after=1' refuses requests",
    ("format", "aiperf"): "write 'vllm' or 'llm-d', or 'parquet' for a program of your own",
    ("format", "guidellm"): "write 'vllm' or 'llm-d', or 'parquet' for a program of your own",
    ("figure", "slo_plane"): "'bench slo RUN --slo A --slo B' scores the run under each SLO",
    ("figure", "slo_scale_rates"): "'bench slo RUN --scale 0.25:4' scales the SLO of each run",
    ("figure", "cluster"): "'bench report RUN --format perfetto' shows roles, states and migrations of every replica",
    ("figure", "agents_share"): "the table of trials of 'bench agents' has the share within each bound by agents",
    ("figure", "placed"): "the tables of the page of 'bench place' have each placement with its value and interval",
    ("figure", "gantt"): "'bench report RUN --format perfetto' shows single requests, phase by phase",
    ("figure", "latency_tail"): "'--figure latency_cdf' has the distribution, and the table of the run p99 and maximum",
    ("figure", "latency_cdf_rates"): "'--figure latency_rate' has p50, p90 and p99 at every rate",
    ("figure", "gaps"): "'--figure burstiness' shows the arrivals, and the checks of a run test the law of their gaps",
    ("figure", "capacity_plane"): "'bench slo FOLDER --slo A --slo B' finds the rate that each SLO allows",
    ("figure", "knees"): "'--figure attainment_rate' shows the capacity and its interval",
    ("figure", "sides_rate"): "'bench report BASE HEAD' draws the curves of two sweeps or searches on one page",
    ("figure", "sides_scale"): "'bench slo RUN --scale 0.25:4' scales the SLO of each run",
    ("figure", "ratios"): "the table below '--figure attainment_rate' has what each system sustains over the first",
    ("figure", "pairs_scatter"): "'--figure forest' has a dot for each pair, and '--format json' its values",
    ("figure", "requests_paired"): "'--figure cdf_difference' shows which latencies changed; a table counts requests",
    ("figure", "attainment_over"): "'--figure attainment_rate' is over the option where no rate is varied",
    ("figure", "search_path"): "the report of 'bench capacity' has a table of the trials in their order",
    ("figure", "real_error_rate"): "'--figure real_plane' shows simulated against measured, and the table their error",
    ("figure", "real_curves"): "'--figure real_plane' shows simulated against measured, and the table their error",
    (
        "option of bench compare",
        "--pause",
    ): "each run begins after the answers of the one before, and --drain waits longer",
    ("option of bench serve", "--body-timeout"): "a request body may take 60 s to arrive",
    ("option of bench doctor", "--no-engine"): "it takes a second or two with the engine",
    ("option of bench fit", "--holdout"): "a fifth of the rows is held out",
    ("option of bench fit", "--no-gaps"): "the time to the next step of a busy run is part of a step",
    ("option of bench validate", "--leave-out"): "'--fit' leaves each run out in turn",
    ("option of bench explain", "--html"): "'bench trace generate NAME --requests N -o FILE' draws requests, and "
    "'bench trace info FILE --html PAGE' charts them",
    ("trace command", "slice"): "'bench trace convert FILE --start 5min --stop 20min' writes a part of a trace",
    ("trace command", "scale"): "'bench trace convert FILE --scale thin:0.5' writes a trace under another load",
    ("option of bench report", "--plotly-bundle"): "a page holds the plotly.js of the installed plotly",
    ("option of bench report", "--sections"): "'--figure NAME' draws one figure, and '--format csv' writes the numbers",
    ("option of bench report", "--plain"): "every browser since 2023 unpacks a page",
    ("option of bench trace generate", "--workers"): "one process draws the same rows",
    ("option of bench trace convert", "--sort"): "rows are ordered by their stamps without it",
    **{
        ("export format", form): "'--export json=FILE' has every number, for a program that writes it in that form"
        for form in ("bencher", "pytorch")
    },
    **{
        ("option of bench compare", f"--{form}"): f"'--export {form}=FILE' writes it, and '--format' prints text, "
        "markdown, json or csv"
        for form in ("markdown", "junit", "json")
    },
    ("option", "--columns"): "'--reader at=ts,prompt=in,output=out' names the columns of a plain trace",
    ("option", "--json"): "'--format json' prints JSON",
    ("option of bench slo", "--plane"): "'bench slo RUN --slo A --slo B' scores the run under each SLO",
    (
        "option of bench slo",
        "--failed-as-infinite",
    ): "in '--slo p99:ttft=1' a failed request is infinitely slow",
    ("definition profile", "etalon"): "'bench slo RUN --slo ttft=1,tpot=0.1 --tokens' counts tokens by their deadlines",
    (
        "option",
        "--max-seeds",
    ): "'bench capacity' and 'bench agents' take the seeds that --tolerance, --budget, --max-requests ask for",
    (
        "option",
        "--definition",
    ): "'--conditions separate' takes each bound by itself; Sarathi's are '--slo p99:itl=0.2,p50:scheduling_delay=2'",
    ("condition", "sarathi"): "its bounds are '--slo p99:itl=0.2,p50:scheduling_delay=2'",
    (
        "option",
        "--objective",
    ): "--prices and --power say what to save; 'bench sweep --over tp=4,8' shows the TPOT of each parallelism",
    ("option", "--ratio"): "'bench place --algorithm high' prints the best ratio of prefill to decode replicas",
    ("option", "--max-rate"): "'bench place' simulates each deployment over a horizon, within --max-requests",
    ("option", "--width"): "'bench place' simulates each deployment over a horizon, within --max-requests",
    **{
        ("option to sweep over", name): f"'bench slo FOLDER {option}' scores the runs of the sweep again"
        for name, option in (("slo", "--slo A --slo B"), ("slo-scale", "--scale 0.5:2"))
    },
    (
        "option",
        "--refine",
    ): "'bench capacity' searches the rate that meets the goal; '--rate 2:3:0.1' adds points to the same --out",
    **{
        ("option", f"--{name}"): f"write it as an argument of the backend, '--backend sim:{name}={example}'"
        for name, example in ARGUMENTS.items()
    },
    **{
        ("option", f"--{name}"): f"write it behind the URL of the server, 'URL,{name}={example}'"
        for name, example in SERVER_ARGUMENTS.items()
    },
    ("placement algorithm", "mii"): "'--algorithm vllm++ --policy fastgen' places colocated replicas of that policy",
    ("trace reader", "splitwise"): "'--reader csv' reads its columns",
    **{
        ("trace reader", name): "'--reader messages' reads such rows"
        for name in ("chat-log", "openai-batch", "prompts", "text-input")
    },
    ("trace reader", "applied-compute"): "write a row per turn with session_id, timestamp (in the first row of a "
    "session), input_length (what it adds), output_length and delay for '--reader timed-trace'",
    ("probe", "full"): "the probe of two requests corrects prompt lengths too, and the run reports what error remains",
    ("route", "reject-forward"): "'--router reject-forward' is one of the simulator and the engine",
    ("argument", "compat"): "'bench explain distserve' says where the numbers of DistServe's simulator are checked",
    ("policy", "distserve-sim"): "'--policy vllm-v0' runs prompts first too",
    ("definition profile", "distserve-sim"): "'bench explain distserve' names the tests of its simulator's numbers",
    **{
        ("term or plug-in", name): "it is a function of backends/systems/rlmserving.py ('bench explain rlmserving')"
        for name in ("kv_swing", "straggler_tail", "adaptivity")
    },
    ("term or plug-in", "tail_waste"): "steps.parquet of a run has the sequences of every step",
    **{
        ("argument of longbench", name): "write the rows as JSON lines with prompt and output_tokens, and replay them "
        "by '--trace FILE --reader messages:tokenizer=...'"
        for name in ("path", "tokenizer")
    },
    ("content", "calibrated"): "'--content text' does so where the server has no tokenizer to ask, without arguments",
    ("arrivals", "burstgpt-published"): "'--arrivals gamma:cv=1.414' has gaps of the same law",
    (
        "lengths",
        "burstgpt-published",
    ): "'--lengths power-law' has a Zipf law, and '--lengths burstgpt' is like the data",
    ("arrivals", "onoff"): "'mmpp:levels=1/0,dwells=10s/30s' is on for 10 s and off for 30 s on average, and "
    "'spike:factor=0,at=10s,for=30s,every=40s' exactly so",
    ("arrivals", "servegen"): "'bench trace generate servegen:FOLDER -o FILE' writes the requests of the clients, and "
    "'--arrivals trace:FILE' has their times",
    ("lengths", "servegen"): "'bench trace generate servegen:FOLDER -o FILE' writes the requests of the clients, and "
    "'bench trace fit FILE' their lengths for '--lengths fitted:MODEL'",
    ("arrivals", "weibull"): "'gamma:cv=1.46' has gaps as heavy as those of shape 0.7; clients of ServeGen keep theirs",
    ("sessions", "fitted"): "'--trace MODEL' draws whole sessions of a model",
    ("closed form", "afd"): "'--latency af' simulates such deployments",
    ("argument of experts", "copies"): "'--latency af:copies=2' has them",
    ("argument of experts", "fail"): "'--latency af:copies=2 --backend sim:fail=expert:0@1s' simulates it",
    ("argument of fitted", "of"): "'--trace MODEL' draws whole sessions of a model",
    ("arrivals", "simdistserve"): "'--arrivals poisson' has the same gaps of other draws",
}
"""What it was, and its name: what takes its place, as the end of a sentence."""
