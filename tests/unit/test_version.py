"""The version stands in one place, and where it is repeated it is the same."""

import re
from importlib.metadata import version
from pathlib import Path

import fedsieve
from fedsieve.base.version import VERSION

ROOT = Path(__file__).parents[2]


def test_the_package_and_its_pages_have_one_version():
    assert fedsieve.__version__ == VERSION == version("fedsieve")
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == VERSION
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == VERSION
