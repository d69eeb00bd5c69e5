"""Without the extra `flower` there is nothing to test here."""

from importlib.util import find_spec

import pytest

from fedsieve.flower.quiet import hush
from fedsieve.report import html

collect_ignore_glob = [] if find_spec("flwr") else ["*.py"]
hush()


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Drawing takes longer than these runs."""
    monkeypatch.setattr(html, "write_report", lambda *_: None)
