"""`bench doctor`: whether this machine can measure, and what to do where it cannot."""

import click


@click.command("doctor", short_help="Check this machine and the installation.")
@click.option("--no-engine", is_flag=True, help="Leave out the smoke run of the built-in engine.")
def command(no_engine: bool) -> int:
    """Check packages, cores, clock, timer, arrival stamps, open files, disk, BLAS threads and the built-in engine.

    Ends with exit code 0 when everything that a run needs is there, else 3.
    """
    from harness.cli import _checks, _terminal

    checks = [c for c in _checks.ALL if not (no_engine and c is _checks.engine)]
    failed = 0
    for check in checks:
        found = check()
        failed += found.state == "FAIL"
        _terminal.say(f"{found.state:<5} {found.name:<17} {found.value}")
        if found.remedy:
            _terminal.say(f"      {'':<17} -> {found.remedy}")
    _terminal.say("")
    ready = "Everything a run needs is there. Next: bench run --workload chatbot --slo ttft=0.25,tpot=0.1"
    _terminal.say("A run needs what failed above." if failed else ready)
    return 3 if failed else 0
