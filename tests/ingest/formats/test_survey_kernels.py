"""Statistics of columns: NumPy's are those of the compiled loops to the bit, and hashes are those of other programs."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.ingest.formats import column_survey, columns
from distsms.ingest.formats.column_survey import NumberSurvey

pytestmark = pytest.mark.serial
numbers = st.one_of(
    st.sampled_from([0.0, -0.0, np.nan, 1.0, 0.1]), st.floats(-1e150, 1e150), st.integers(-3, 3).map(float)
)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), max_size=60), st.integers(0, 60), st.integers(8, 12))
def test_numpy_finds_the_same_to_the_bit(rows, cut, size):
    """In two batches, with samples that overflow."""
    values, surveys = np.array(rows).reshape(-1, 3), []
    for few in (-1, 2**20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(column_survey, "FEW", few)
            survey = NumberSurvey(4)
            for name in ("hashes", "times"):
                setattr(survey.sample, name, getattr(survey.sample, name)[:, :size].copy())
            for batch in (values[:cut], values[cut:]):
                survey.add(batch.T, np.array([2, 0, 3]))
            sample = [survey.sample.hashes[c, :used].tolist() for c, used in enumerate(survey.sample.sizes)]
            times = [survey.sample.times[c, :used].tolist() for c, used in enumerate(survey.sample.sizes)]
            arrays = survey.counts, survey.sums, survey.extremes, survey.whole, survey.sample.sizes
            surveys.append((sample, times, *(array.tobytes() for array in arrays)))
    assert surveys[0] == surveys[1]


@given(st.lists(st.binary(max_size=13), max_size=12), st.integers(0, 2**31))
def test_hashes_of_strings_are_those_of_scikit_learn(strings, seed):
    utils = pytest.importorskip("sklearn.utils")
    buffers = np.cumsum([0, *map(len, strings)], dtype=np.int64), np.frombuffer(b"".join(strings) or b"\0", np.uint8)
    column = pa.Array.from_buffers(pa.large_string(), len(strings), [None, *map(pa.py_buffer, buffers)])
    found = columns.hash_strings(column, seed)
    assert found.tolist() == [utils.murmurhash3_32(string, seed, positive=True) for string in strings]


@pytest.mark.serial
def test_a_long_string_is_hashed_as_fast_among_others():
    def seconds(strings):
        column, times = pa.array(strings), []
        for _ in range(3):
            begun = time.perf_counter()
            columns.hash_strings(column)
            times.append(time.perf_counter() - begun)
        return min(times)

    long, others = ["a" * 10_000], ["b"] * 400_000
    assert seconds(long + others) < 3 * (seconds(long) + seconds(others)) + 0.05
