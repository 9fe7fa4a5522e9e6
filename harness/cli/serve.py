"""`bench serve`: an OpenAI-compatible server in front of the engine, the simulator in real time, or nothing."""

import click

from harness.cli._options import COUNT, TIME, Value, port
from harness.errors import UsageError
from harness.spec import size_bytes

_EPILOG = """
\b
Examples
  bench serve
      the built-in engine: a small real model on this machine
  bench serve --backend sim:model=opt-13b,hardware=a100-80g --port 8001
      a simulated GPU server, in real time
  bench serve --backend null:ttft=0.2,itl=0.01,tokens=16 --port 0 --log truth.jsonl
      tokens at fixed times, to test clients; a free port; a log of all tokens
  bench serve --backend null:itl=10ms --fault reset:every=10,token=5 --fault 429:every=7
      the same, resetting every tenth response and refusing every seventh request

\b
Faults (every=N: each Nth request; token=K: at token K, 0 before the response starts)
  reset:token=5               reset the connection at token K
  slow=5%                     make every response 5 % slower; slow=5%:from=60s: requests from 60 s after the start on
  429:retry_after=1           respond with 429 immediately

Ctrl-C waits up to --grace for running responses; a second Ctrl-C exits immediately. The last line reports the lateness
of sent tokens, which limits the accuracy of client comparisons.
"""


@click.command(
    "serve", epilog=_EPILOG, short_help="Serve the engine, the simulator or a null backend over OpenAI's API."
)
@click.option("--backend", metavar="SPEC", default="engine", show_default=True,
              help="engine, sim or null, with arguments.")  # fmt: skip
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=Value(port), metavar="N", default="8000", show_default=True,
              help="Port to listen on; 0: a free one, printed on standard output.")  # fmt: skip
@click.option("--name", metavar="NAME", help="Model name for clients. Default: that of the backend.")
@click.option("--log", metavar="FILE", help="Log every response, token by token (JSON lines).")
@click.option("--grace", type=TIME, metavar="TIME", default="10s", show_default=True,
              help="Time for running responses to finish after Ctrl-C.")  # fmt: skip
@click.option("--max-queue", type=COUNT, metavar="N",
              help="Queue limit; further requests are refused with 429. Default: unlimited.")  # fmt: skip
@click.option("--max-body", type=Value(lambda text, name: int(size_bytes(str(text), name))), metavar="SIZE",
              default="16MiB", show_default=True, help="Maximum size of a request body.")  # fmt: skip
@click.option("--fault", "faults", metavar="SPEC", multiple=True, help="Inject a fault (see below). Repeatable.")
@click.option("--api-key-env", metavar="NAME", help="Require the API key in this environment variable.")
def command(
    backend: str, host: str, port: int, name: str | None, log: str | None, grace: float, max_queue: int | None,
    max_body: int, faults: tuple[str, ...], api_key_env: str | None,
) -> None:  # fmt: skip
    """Serve an OpenAI-compatible API (chat and completions, with streaming), to test clients against known token times.

    Also: /v1/models, /health, /version, /metrics (with vLLM's names), /tokenize, /reset_prefix_cache.
    """
    import os
    from pathlib import Path

    from backends.server import front, run
    from harness.cli import _terminal

    key = os.environ.get(api_key_env) if api_key_env is not None else None
    if api_key_env is not None and not key:
        raise UsageError(f"--api-key-env: there is nothing in the environment variable '{api_key_env}'.")
    options = front.Options(
        backend=backend,
        host=host,
        port=port,
        name=name,
        log=Path(log) if log is not None else None,
        grace_s=grace,
        max_queue=max_queue,
        max_body_bytes=max_body,
        faults=faults,
        api_key=key,
    )

    def ready(running: run.Running) -> None:
        model, url = running.front.names[0], running.url
        if port == 0:
            _terminal.say(str(running.port))
        _terminal.note(f"Serving '{model}' at {url} (Ctrl-C ends it). Try it from another terminal:")
        _terminal.note(f"  bench run --backend openai:url={url},model={model} --rate 2 --requests 20")

    run.serve(options, _terminal.note, ready)
