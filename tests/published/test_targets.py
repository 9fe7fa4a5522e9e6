"""Public measurements beside the simulator: which targets of S26 and S58 are met."""

from pathlib import Path

import pytest

from published import sources


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("source", "met"),
    [
        ("apex-h100", [False, False]),
        ("distserve-a100", [True, True, False]),
        ("distserve-66b-chat-ae", [False, False]),
    ],
)
def test_targets_of_public_measurements(source: str, met: list[bool], shared_data: Path) -> None:
    """A row would go on to say that a target is met or missed after the simulator changed."""
    assert met == [target.holds for target in sources.compare(source, shared_data).targets]
