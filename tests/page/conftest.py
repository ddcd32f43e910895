"""What tests of pages share."""

from __future__ import annotations

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made, but not written as SVG, which takes most of the time of a page: for tests of its words."""
    monkeypatch.setattr("distsms.page.mpl.as_svg", lambda figure: '<svg viewBox="0 0 1 1"></svg>')
