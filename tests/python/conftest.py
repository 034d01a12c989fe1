from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Derandomised: the same examples on every run; a failure prints its arguments and the @reproduce_failure line.
settings.register_profile(
    "tandem",
    derandomize=True,
    deadline=None,
    print_blob=True,
    max_examples=int(os.environ.get("TANDEM_HYPOTHESIS_EXAMPLES", "200")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("tandem")

CPU_BACKENDS = ("reference", "tiled")


def _why_no_gpu() -> str:
    from tandem import _core

    available, reason = _core.backend_available(_core.BACKEND_SM90, (_core.CUDA, 0))
    return "" if available else reason


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `cuda` are skipped where no GPU can serve; with TANDEM_REQUIRE_GPU=1 they fail."""
    reason = _why_no_gpu() if item.get_closest_marker("cuda") else ""
    if reason and os.environ.get("TANDEM_REQUIRE_GPU") == "1":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture(params=CPU_BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone: running that one test reproduces them."""
    return np.random.default_rng(np.frombuffer(request.node.nodeid.encode(), np.uint8))
