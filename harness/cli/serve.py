"""`bench serve`: an OpenAI-compatible server in front of the engine, the simulator in real time, or nothing."""

import click

_EPILOG = """
\b
Examples
  bench serve
      the built-in engine: a small real model on this machine
  bench serve --backend sim:model=opt-13b,hardware=a100-80g --port 8001
      a stand-in for a GPU server, in real time
  bench serve --backend null:ttft=0.2,itl=0.01,tokens=16 --port 0 --log truth.jsonl
      tokens at stated times, to try clients against; a free port; what happened in a file
  bench serve --backend null:itl=10ms --fault reset:every=10,token=5 --fault 429:every=7
      the same, with every tenth answer broken off and every seventh request refused

\b
Faults (every=N: each Nth request; token=K: at token K, 0 before anything of the answer)
  delay:seconds=1,token=0     everything from token K on leaves later
  stall:seconds=30,token=5    silence at token K, then all at once; without seconds for ever
  reset:token=5               the connection is reset; close:token=5 closes it in good order
  malformed:token=5           the event of token K is cut in its JSON
  429:retry_after=1           refused at once; 503 likewise

Ctrl-C lets running answers finish within --grace, a second one ends now. The last line tells how late tokens left:
a comparison of clients is only as good as that line.
"""


@click.command("serve", epilog=_EPILOG, short_help="Serve the engine, the simulator or nothing to OpenAI clients.")
@click.option(
    "--backend", metavar="SPEC", default="engine", show_default=True, help="engine, sim or null, with arguments."
)
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", metavar="N", default="8000", show_default=True, help="0: a free one, printed on standard output."
)
@click.option("--name", metavar="NAME", help="The model's name for clients; default: what the backend calls it.")
@click.option("--log", metavar="FILE", help="Write what happened to each answer, token by token (JSON lines).")
@click.option(
    "--grace", metavar="TIME", default="10s", show_default=True, help="Time for running answers after Ctrl-C."
)
@click.option("--max-queue", metavar="N", help="Waiting requests; one more is refused with 429. Default: any number.")
@click.option("--max-body", metavar="SIZE", default="16MiB", show_default=True, help="Longest body of a request.")
@click.option("--fault", "faults", metavar="SPEC", multiple=True, help="Something to go wrong on purpose; repeatable.")
@click.option("--api-key-env", metavar="NAME", help="Ask clients for the key that this environment variable holds.")
def command(
    backend: str,
    host: str,
    port: str,
    name: str | None,
    log: str | None,
    grace: str,
    max_queue: str | None,
    max_body: str,
    faults: tuple[str, ...],
    api_key_env: str | None,
) -> None:
    """Answer OpenAI's chat and completions API, with streaming, so that any client can be tried against a known truth.

    Also: /v1/models, /health, /version, /metrics (with vLLM's names), /tokenize, /detokenize, /reset_prefix_cache.
    """
    import os
    from pathlib import Path

    from harness import compose
    from harness.cli import _terminal
    from harness.errors import UsageError
    from harness.spec import seconds, size_bytes

    key = os.environ.get(api_key_env) if api_key_env is not None else None
    if api_key_env is not None and not key:
        raise UsageError(f"--api-key-env: there is nothing in the environment variable '{api_key_env}'.")
    options = {
        "backend": backend,
        "host": host,
        "port": _whole("--port", port, most=65_535),
        "name": name,
        "log": Path(log) if log is not None else None,
        "grace_s": seconds(grace, "--grace"),
        "max_queue": _whole("--max-queue", max_queue, least=1) if max_queue is not None else None,
        "max_body_bytes": int(size_bytes(max_body, "--max-body")),
        "faults": faults,
        "api_key": key,
    }

    def ready(running: object) -> None:
        model = running.front.names[0]  # type: ignore[attr-defined]  # backends.server.run.Running
        url = running.url  # type: ignore[attr-defined]
        if options["port"] == 0:
            _terminal.say(str(running.port))  # type: ignore[attr-defined]
        _terminal.note(f"Serving '{model}' at {url} (Ctrl-C ends it). Try it from another terminal:")
        _terminal.note(f"  bench run --backend openai:url={url},model={model} --rate 2 --requests 20")

    compose.serve(options, _terminal.note, ready)


def _whole(option: str, text: str, *, least: int = 0, most: int | None = None) -> int:
    from harness.errors import UsageError

    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        limit = f" from {least} on" if most is None else f" from {least} to {most}"
        raise UsageError(f"{option} must be a whole number{limit}, got '{text}'.")
    return int(text)
