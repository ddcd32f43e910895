"""How many examples hypothesis tries."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

EXAMPLES = int(os.environ.get("DISTSMS_EXAMPLES", "20"))
"""The examples of a test that asks for no other number. `scripts/test --all` tries ten times as many."""


def examples(times: float) -> Any:
    """Decorate a test that is to have this multiple of the usual number of examples, since they are cheap or dear."""
    return settings(max_examples=max(2, round(times * EXAMPLES)))
