"""`bench import-command`: the bench command for a command of another load generator."""

import click

from harness.cli._options import formats

_EPILOG = """
\b
Examples
  bench import-command 'vllm bench serve --model m --dataset-name random --request-rate 10 --goodput ttft:250 tpot:100'
      print the bench command, and what vllm's numbers mean otherwise
  bench import-command "$(cat old.sh)" > new.sh
      the command alone; what is to be known of it goes to the terminal
  bench import-command 'inference-perf -c config.yml' --json
      command, notes and flags without an equivalent, for programs

\b
Values
  COMMAND  one command line in quotes, or - to read it from standard input: vllm bench serve, python -m
           sglang.bench_serving, guidellm run (or benchmark), aiperf profile, genai-perf profile, inference-perf -c
"""


@click.command("import-command", epilog=_EPILOG, short_help="Translate a command of vllm bench, SGLang, AIPerf, ...")
@click.argument("command_line", metavar="COMMAND")
@formats
def command(command_line: str, form: str) -> int:
    """Print the bench command for COMMAND, a command line of another load generator.

    Text has the command on standard output, quoted for a shell. Differences in what the numbers mean, flags without an
    equivalent with the reason, and unknown flags go to standard error; no flag is dropped silently.
    """
    import sys

    from harness import compose
    from harness.cli import _terminal
    from harness.experiments.commands import translate

    found = translate(sys.stdin.read() if command_line == "-" else command_line)
    rows = [
        *({"what": "no equivalent", "flag": flag, "text": f"{why}."} for flag, why in found.lost.items()),
        *({"what": "unknown flag", "flag": flag, "text": "bench does not know it; it has no effect on the command."}
          for flag in found.unknown),
        *({"what": "differs", "flag": "", "text": f"{note}."} for note in found.notes),
    ]  # fmt: skip
    if form != "text":
        rows = [{"what": "command", "flag": "", "text": found.command}, *rows]
        _terminal.show(form, compose.table_report(f"From {found.tool}", rows))
        return 0
    _terminal.say(found.command)
    for row in rows:
        _terminal.note(f"{row['what']}: {row['flag']}{': ' if row['flag'] else ''}{row['text']}")
    return 0
