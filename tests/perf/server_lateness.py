"""How late `bench serve` is by itself: the null backend, streams of 20 tokens/s, and a reader that only reads.

For each number of streams a server in a process of its own; requests begin within 0.6 s, each asks for `--tokens`.
Printed are its own last line (by how much tokens left after their time) and its CPU time per token, requests included.

    python tests/perf/server_lateness.py [--streams 10,100,500,1000,2000] [--tokens 60] [--log] [--long 5]

`--long` sends as many requests a second with prompts of 2 MB beside them, which must not make the others late.

    --long         requests a second with prompts of 2 MB
    --log          let the server write the truth, too
"""

import json
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _options import parsed  # beside this file

GAP_S = 0.05
FIRST_S = 0.8
SPREAD_S = 0.6
LONG = """
import http.client, json, time
body = json.dumps({{"prompt": [100 + i % 100 for i in range(400_000)], "max_tokens": 1}})
while True:
    to = http.client.HTTPConnection("127.0.0.1", {port})
    to.request("POST", "/v1/completions", body)
    assert to.getresponse().status == 200
    time.sleep({pause_s})
"""
LATENESS = re.compile(r"Tokens left p50 (\S+) ms, p99 (\S+) ms, at worst (\S+) ms .*\((\d+)\)\.")


def main() -> None:
    given = parsed(__doc__, streams="10,100,500,1000,2000", tokens=60, long=0.0, log=False)
    print("streams  tokens/s   p50 ms   p99 ms   max ms   CPU us/token  failed")
    for streams in map(int, given.streams.split(",")):
        print(one(streams, given.tokens, given.log, given.long), flush=True)


def one(streams: int, tokens: int, log: bool, long_rps: float) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "harness", "serve", "--port", "0"]
        command += [
            "--backend",
            f"null:ttft={FIRST_S},itl={GAP_S}",
            *(["--log", f"{folder}/log"] if log else []),
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            before_s = cpu_s(server.pid)
            with long_prompts(port, long_rps):
                failed = read(port, streams, tokens)
            used_s = cpu_s(server.pid) - before_s
            server.send_signal(signal.SIGINT)
            _, notes = server.communicate(timeout=60)
        finally:
            server.kill()
            server.wait()
    found = LATENESS.search(notes)
    assert found is not None, notes
    p50, p99, worst, count = (float(text) for text in found.groups())
    rate = streams / GAP_S
    return f"{streams:7} {rate:9,.0f} {p50:8.2f} {p99:8.2f} {worst:8.2f} {used_s / count * 1e6:14.0f} {failed:7}"


@contextmanager
def long_prompts(port: int, rps: float) -> Iterator[None]:
    """Requests of 2 MB and one token meanwhile, from a process of its own."""
    if not rps:
        yield
        return
    program = LONG.format(port=port, pause_s=1 / rps)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(program)
        file.flush()
        running = subprocess.Popen([sys.executable, file.name])
        try:
            time.sleep(1.0)
            yield
            assert running.poll() is None, "the long prompts were not answered"
        finally:
            running.kill()
            running.wait()


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, by the scheduler's own clock where Linux tells it."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def read(port: int, streams: int, tokens: int) -> int:
    """Ask for that many streams and read until all have ended; how many did not end well."""
    fields = {"prompt": "hi", "stream": True, "max_tokens": tokens, "ignore_eos": True}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    waiting = selectors.DefaultSelector()
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(streams)]
    for connection in sockets:
        connection.setblocking(False)
        waiting.register(connection, selectors.EVENT_READ, bytearray())
        connection.send(head + body)
        time.sleep(SPREAD_S / streams)
    failed, left = 0, streams
    while left:
        for key, _ in waiting.select():
            data = key.fileobj.recv(65_536)  # type: ignore[union-attr]  # the sockets from above
            key.data[:] = (key.data + data)[-64:]
            if not data or key.data.endswith(b"0\r\n\r\n"):
                waiting.unregister(key.fileobj)
                failed += b"[DONE]" not in key.data
                left -= 1
    for connection in sockets:
        connection.close()
    return failed


if __name__ == "__main__":
    main()
