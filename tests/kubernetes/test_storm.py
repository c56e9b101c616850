"""A short storm; `make storm-kubernetes` is the long one."""

import pytest
from tests.kubernetes.storm import storm


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_drivers_lose_nothing_and_run_nothing_twice(long_form: bool) -> None:
    kills = 8 if long_form else 4
    killed, _, bad = storm(kills, seed=1)
    assert killed == kills and not bad
