"""Values in messages are written as a user would write them."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.formatting import format_value

pytestmark = pytest.mark.serial


class Written:
    """A value that is written as NumPy 2 writes it, whichever NumPy is installed."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(1.0), "1.0"),
        ((np.float32(0.5), [np.int64(3)]), "(0.5, [3])"),
        (np.True_, "True"),
        (np.str_("yes"), "'yes'"),
        (Written("np.float64(1.0)"), "1.0"),
        (Written("{'lam': [np.float64(-1e-05), np.int64(3)], 'b': np.True_}"), "{'lam': [-1e-05, 3], 'b': True}"),
        (Written("np.str_('yes')"), "'yes'"),
        (Written("array([1., 2.])"), "array([1., 2.])"),
        ("text", "'text'"),
        (None, "None"),
    ],
)
def test_numbers_of_numpy_are_plain(value, expected):
    assert format_value(value) == expected
