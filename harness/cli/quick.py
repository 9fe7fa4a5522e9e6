"""`bench quick`: the capacity of whatever server is there, in three minutes."""

import time
from typing import Any

import click

from harness.cli._options import (
    GroupedCommand,
    given,
    max_requests,
    option,
    out,
    result_options,
    run_options,
    wait,
)
from harness.errors import BackendError, NotReady, UsageError
from harness.options import ENDPOINT
from harness.values import text

SERVER_S, ENGINE_S = 180.0, 60.0
"""How long the command may take, with a server and with the built-in engine."""
PAGE_S, FLOOR_S, STARTED_S = 6.0, 6.0, 1.5
"""Of it for the page, for measuring the client, and for what was over when the command began."""
FAILED = 0.1
"""Share of requests that may fail: of a dozen, one beyond the context of the server is more than the usual 1%."""
LEAST_S = 15.0
"""A search takes that long, if it is to tell anything."""
NOTHING = "No server with OpenAI's API answers on this machine (OPENAI_BASE_URL, usual ports)"
_EPILOG = """
\b
Examples
  bench quick
      the server at OPENAI_BASE_URL, else one on this machine, else the built-in engine
  bench quick http://gpu1:8000/v1 --slo ttft=0.5,tpot=0.05
      that server under these objectives
  bench quick localhost:11434 --model llama3.1:8b --workload chatbot
      one of several models

\b
Ports tried on this machine
  8000 vLLM, TensorRT-LLM, NIM, bench serve   30000 SGLang   8080 llama.cpp   11434 Ollama   1234 LM Studio
  23333 LMDeploy   3000 text-generation-inference   5000 TabbyAPI   5001 KoboldCpp   1337 Jan   2242 Aphrodite
  4000 LiteLLM   9997 Xinference

\b
Exit codes
  0 capacity found, within 5%
  1 the goal is not reached at any rate
  2 wrong usage; or one of several models must be named
  3 the server is not there, refuses the key, takes more than 30 s for a first token, generates no text, or fails
  4 a trial is not valid, twice; or terminated (SIGTERM) with the results so far
  5 an interval wider than 5%, a bracket, or one side alone: the usual result of three minutes
  70 a bug, or exhausted memory
  130 interrupted before the first trial ended

Ctrl-C ends the search with the results so far. The folder is that of a capacity search: 'bench capacity --out' with it
goes on.
"""


@click.command("quick", cls=GroupedCommand, epilog=_EPILOG, short_help="Find a server and its capacity in 3 minutes.")
@click.argument("url", required=False)
@run_options(
    only=("workload", "lengths", "slo", "goal", "model", "seed"),
    model={"group": ENDPOINT, "help": "Name of the model. Default: the server's, if it has only one."},
    goal={"metavar": "SHARES", "check": text},
)
@wait
@option("--budget", metavar="TIME", group="Search", help="Time for everything. Default: 3min; built-in engine: 1min.")
@max_requests("none")
@out("Store runs, answer and report.html here. Default: a new folder in bench-runs.")
@result_options
def command(
    url: str | None, model: str | None, goal: str | None, budget: str | None, max_requests: int | None,
    out: str | None, form: str,
    no_html: bool, quiet: bool, metrics_port: tuple[str, int] | None, wait: float | None, **options: Any,
) -> int:  # fmt: skip
    """Find a server, then the highest rate that meets the SLO, as well as three minutes tell.

    Asks the server at URL, else at OPENAI_BASE_URL, else at the usual ports of this machine. Without one it measures
    the built-in engine.
    """
    from msgspec.structs import replace

    from backends.client import discover
    from harness import termination
    from harness.cli import _terminal
    from harness.experiments.capacity.conditions import settings
    from harness.experiments.capacity.execute import folder_of, set_up
    from harness.experiments.capacity.quick import client_floor, quick_search
    from harness.experiments.capacity.store import Store
    from harness.options import run_spec
    from harness.runner.remote.run import when_ready
    from harness.spec import Spec, seconds
    from reports.document.rendered import write_page

    begun_s = time.monotonic() - STARTED_S
    tell = _terminal.nothing if quiet else _terminal.note
    limit_s = None if budget is None else seconds(budget, "--budget")
    search = settings(goal, None, None, None, None, None, max_requests)
    called_s = time.monotonic()

    def find_server() -> discover.Found | None:
        server = termination.run(discover.find(url, model))
        if server is None and wait is not None:  # who waits for a server does not want the built-in engine
            raise NotReady(NOTHING)
        return server

    server = when_ready(find_server, wait or 0.0, tell)
    begun_s += time.monotonic() - called_s if wait else 0.0
    if server is None and model is not None:
        raise BackendError(f"{NOTHING}, and the built-in engine has no --model here; give the URL of the server.")
    if server is None:
        _terminal.note(f"{NOTHING}: measuring the built-in engine, a small model on this machine's processor.")
        backend = "engine"
    else:
        more = f" (also there: {', '.join(server.others)}; name one to measure it)" if server.others else ""
        _terminal.note(f"Measuring '{server.model}' at {server.url}{more}.")
        api = {} if server.api == "chat" else {"api": server.api}
        backend = str(Spec("openai", {"url": server.url, "model": server.model, **api}))
    setup = set_up(run_spec(given({**options, "backend": backend, "max_failed": FAILED})), search)
    total_s = limit_s if limit_s is not None else ENGINE_S if server is None else SERVER_S
    spare_s = PAGE_S + (0.0 if server is None else FLOOR_S)
    if total_s < LEAST_S + spare_s:
        raise UsageError(f"--budget must be {LEAST_S + spare_s:.0f}s or more, got '{budget}'.")
    store = Store(folder_of(out, setup))
    tell(f"SLO {setup.slo!s}, workload {setup.planned.loaded.name}; done in {total_s / 60:.3g} min at most.")
    with _terminal.display(metrics_port, quiet=quiet) as display:
        info = quick_search(setup, store, begun_s + total_s - spare_s, tell, display)
    if server is not None and info.state == "finished" and info.exit_code not in (3, 4):
        tell("measuring the client on a server that answers at once")
        info = replace(info, floor=client_floor(setup, info))
        store.finish(info)
    report = None if no_html or store.path is None else write_page(info, _terminal.complain, store.path)
    _terminal.show(form, info)
    tell(f"{time.monotonic() - begun_s:.0f} s in all; report: {report}")
    return info.exit_code
