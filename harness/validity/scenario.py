"""What a run does otherwise than the configuration whose rules it is to follow, such as those of a public benchmark."""

from collections.abc import Iterator, Mapping

from harness import configs
from harness.api import RunWarning
from harness.options import OPTIONS, Given
from harness.spec import parse
from harness.validity.rules import Rule, applying

FREE = ("trace", "seed", "content")
"""Options of traffic that such a configuration leaves to the user."""
OF_BACKEND: Mapping[str, object] = {"stream": True, "output_lengths": "exact"}
"""Facts of a server that each of them asks for: answers come token by token, and have the requested length."""


def warnings(spec: Mapping[str, object], backend: Mapping[str, object]) -> Iterator[RunWarning]:
    """What differs in the options of a run and the facts of its backend, in one warning; none without a scenario."""
    name = spec.get("scenario")
    if name is None:
        return
    config = configs.read(str(name))
    differences = [*_broken(spec, backend, config.given), *config.differs]
    yield from applying([Rule(
        differences, "scenario", f"This run deviates from {name}: {'; '.join(differences)}.",
        f"give no other values than those of '--config {name}' to compare it with results of others",
    )])  # fmt: skip


def _broken(spec: Mapping[str, object], backend: Mapping[str, object], config: Given) -> Iterator[str]:
    """Each rule that the run does not keep."""
    rules = {option: OPTIONS[option].check(value, option) for option, value in config.values.items()}
    for option, rule in rules.items():
        value = spec.get(option)
        if not _keeps(value, rule, at_least=option == "duration"):
            yield f"{option} is {'not given' if value is None else value} (rule: {rule})"
    for option, value in spec.items():
        if option in OPTIONS and OPTIONS[option].source is not None and option not in {*rules, *FREE}:
            yield f"{option} is {value}, which no rule has"
    for fact, rule in OF_BACKEND.items():
        if backend.get(fact, rule) != rule:
            yield f"{fact} of the server is {backend[fact]}"
    if backend.get("salt", "") is None:
        yield "no salt opens the prompts, so a cache of an earlier run may help"


def _keeps(value: object, rule: object, *, at_least: bool) -> bool:
    """Whether the value of an option keeps its rule: no less, or the same with arguments that the rule leaves open."""
    if at_least and isinstance(value, float | int) and isinstance(rule, float | int):
        return value >= rule
    if not isinstance(value, str) or not isinstance(rule, str):
        return value == rule
    run, ruled = parse(value), parse(rule)
    return (run.name, run.first) == (ruled.name, ruled.first) and ruled.args.items() <= run.args.items()
