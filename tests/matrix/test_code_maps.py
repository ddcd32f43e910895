"""The record of a map of codes, as a manifest has it: it describes the map, and damaged ones are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distsms.matrix.code_maps import Categories, Strings, code_map
from tests.matrix.test_coded import MAPS

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("given_map", MAPS, ids=str)
def test_a_record_describes_the_map(given_map):
    assert code_map(json.loads(json.dumps(given_map.record()))) == given_map


@pytest.mark.parametrize(
    "change",
    [
        {"map": "words"},
        {"map": None},
        {"alphabet": "greek"},
        {"alphabet": 3},
        {"length": 0},
        {"length": 9.5},
        {"length": "9"},
        {"length": 10**30},
        {"degree": 9},
        {"degree": -1},
        {"degree": 0},
        {"spectra": [[1, 10, 2]]},
        {"spectra": [[5, 4, 2]]},
        {"spectra": [[1, 2]]},
        {"spectra": [[1, 2, 9]]},
        {"weights": [1, 2]},
        {"weights": [float("nan")]},
        {"sizes": [1]},
    ],
)
def test_damaged_records_are_refused(change):
    with pytest.raises(ValueError):
        code_map(Strings("dna", 9, 3).record() | change)


@pytest.mark.parametrize("size", [255, 256, 65535, 65536])
def test_the_type_of_codes_holds_the_missing_one(size):
    """Which is `size` or above."""
    assert Categories((2, size)).dtype == np.min_scalar_type(size)


@pytest.mark.parametrize("change", [{"sizes": []}, {"sizes": [0]}, {"sizes": [2**32]}, {"values": [1.0, 0.0]}])
def test_damaged_categories_are_refused(change):
    with pytest.raises(ValueError):
        code_map({"map": "categories", "sizes": [2, 3]} | change)
