"""The pages that answer a question: what they show runs."""

from __future__ import annotations

import pytest

from tests.docs import pages

pytestmark = [pytest.mark.serial, pytest.mark.e2e, pytest.mark.by_turns]


@pytest.mark.parametrize("page", pages.in_sections("docs/howto"), ids=pages.name)
def test_page(page, run_page):
    run_page(page)
