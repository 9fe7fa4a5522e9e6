"""A scenario whose rules a run is to follow, and the warning about a run that does not."""

from dataclasses import replace

import pytest

from harness import configs
from harness.configs import read
from harness.options import Given, run_spec
from harness.validity import scenario

LAWFUL = {"trace": "traces/", "arrivals": "closed:users=32,think=0", "duration": "30min"}
SERVER = {"stream": True, "output_lengths": "exact", "salt": "1234"}


def deviations(given: dict[str, str], backend: dict[str, object] = SERVER) -> str:
    """The warning about a run of the scenario with these options."""
    spec = run_spec(Given({**LAWFUL, **given}), read("agentx-mvp").given)
    [warning] = scenario.warnings(replace(spec, content="text").options(), backend)
    return warning.message


def test_a_run_by_all_rules_names_only_what_bench_does_otherwise() -> None:
    """A result would be taken for one of the benchmark that it is not quite."""
    assert f"This run deviates from agentx-mvp: {'; '.join(read('agentx-mvp').differs)}." == deviations({})
    assert "agentx-mvp" in configs.names()


@pytest.mark.parametrize(("given", "backend", "named"), [
    ({"duration": "10min"}, {}, "duration is 600.0 (rule: 900.0)"),
    ({"turns": "think-only:cap=60s"}, {}, "turns is think-only:cap=60s (rule: think-only:cap=10s)"),
    ({"arrivals": "poisson", "rate": "2"}, {}, "arrivals is poisson (rule: closed:think=0); rate is 2.0, "),
    ({"history": "live"}, {}, "history is live (rule: recorded)"),
    ({"sessions": "recorded"}, {}, "sessions is recorded (rule: recorded:begin_least=0,begin_most=1)"),
    ({"scale": "context:96000"}, {}, "scale is context:96000, which no rule has"),
    ({"where": "context_tokens<=131072"}, {}, "where is context_tokens<=131072, which no rule has"),
    ({"max-failed": "5%"}, {}, "max-failed is 0.05 (rule: 0.01)"),
    ({}, {"stream": False}, "stream of the server is False"),
    ({}, {"output_lengths": "server"}, "output_lengths of the server is server"),
    ({}, {"salt": None}, "no salt opens the prompts"),
])  # fmt: skip
def test_each_broken_rule_is_named(given: dict[str, str], backend: dict[str, object], named: str) -> None:
    """Two teams would compare results of different traffic."""
    assert f"agentx-mvp: {named}" in deviations(given, {**SERVER, **backend})


def test_a_run_without_a_scenario_is_not_judged() -> None:
    assert [] == list(scenario.warnings(run_spec(Given({})).options(), {}))
