"""What the first run of a command compiles, in an environment that was just installed."""

from __future__ import annotations

import pytest

from scripts import precompile
from scripts.benchmarks.first_run import kernels_of, measured

pytestmark = [pytest.mark.serial, pytest.mark.e2e, pytest.mark.by_turns]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precompile, "run", lambda *_: None)  # shards and models are not needed here
        precompile.make_data(path)
    return path


@pytest.mark.parametrize(
    "name, most", [pytest.param("plain", 22, marks=pytest.mark.slow), ("svmlight", 18), ("fit", 13), ("table", 22)]
)
@pytest.mark.by_turns
def test_a_first_run_compiles_few_kernels_and_each_of_them_once(name, most, folder):
    """Types that a run does not need would show as a second version, and what it does not call as one more kernel."""
    first, second = (measured(precompile.FIRST[name], folder, name) for _ in range(2))
    kernels = kernels_of(first["versions"])
    print(f"{name}: {len(kernels)} kernels, {first['seconds'] - second['seconds']:.1f} s of the processor")
    assert 0 < len(set(kernels)) == len(kernels) <= most, kernels
    assert not second["versions"]
