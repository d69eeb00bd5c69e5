"""Texts of others as people and maps get to see them."""

from __future__ import annotations

import re
import unicodedata

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Control characters, and what else ends a line."""
_UNSEEN = re.compile(r"[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""What turns the direction of writing, and blanks without a width. The joiners of scripts that need them stay."""
_HALVES = re.compile(r"[\ud800-\udfff]")


def readable(text: str) -> str:
    """A text on one line in Unicode's composed form, without what would steer a terminal or a page."""
    if _HALVES.search(text):  # halves of characters, from a command line that is no UTF-8
        text = _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
    return " ".join(_UNSEEN.sub("", _BREAKS.sub(" ", unicodedata.normalize("NFC", text))).split())


def is_steering(text: str) -> bool:
    """Whether it holds what `readable` takes out beside blanks and ends of lines."""
    return bool(_UNSEEN.search(text) or _BREAKS.search(re.sub(r"[\t\r\n]", "", text)))
