"""A short storm; `make storm-kubernetes` is the long one."""

import pytest
from tests.kubernetes.storm import storm


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_drivers_lose_nothing_and_run_nothing_twice() -> None:
    killed, _, bad = storm(8, seed=1)
    assert killed == 8 and not bad
