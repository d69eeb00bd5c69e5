"""Errors cross from process to process as words, and come out as what they were."""

import errno
import pickle

import pytest

from fedsieve.base.error_words import KINDS, about, as_ours, from_words, to_words
from fedsieve.base.errors import CompositionError, DataError, FedSieveError, RunError


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_error_comes_out_as_it_went_in(kind):
    found = from_words(to_words(kind("FS303", "cats.csv, line 7: no such class")))
    assert (type(found), found.code, found.message) == (kind, "FS303", "cats.csv, line 7: no such class")


@pytest.mark.parametrize("kind", KINDS.values())
def test_an_error_survives_the_pools_of_others(kind):
    """Whose script calls us in a pool of its own gets errors back as pickles."""
    problem = kind("FS303", "cats.csv, line 7: no such class")
    found = pickle.loads(pickle.dumps(problem))
    assert (type(found), found.code, str(found)) == (kind, "FS303", str(problem))


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        ({"error": "SystemExit", "code": "FS303", "message": "out"}, RunError, "FS303"),
        ({"error": "__builtins__", "code": "FS303", "message": "out"}, RunError, "FS303"),
        ({"error": "re", "code": "FS303", "message": "out"}, RunError, "FS303"),
        ({"error": ["DataError"], "code": "FS303", "message": "out"}, RunError, "FS303"),
        ({"error": "DataError", "code": "FS303\n", "message": "out"}, DataError, "FS210"),
        ({"error": "DataError", "code": 303, "message": "out"}, DataError, "FS210"),
        ({"error": "DataError", "message": "out"}, DataError, "FS210"),
        ({}, RunError, "FS210"),
    ],
)
def test_odd_words_make_an_error_all_the_same(words, kind, code):
    found = from_words(words)
    assert (type(found), found.code) == (kind, code)


def test_a_long_text_is_cut_where_its_sender_is_not_trusted():
    words = to_words(RunError("FS210", "x" * 500))
    assert from_words(words).message == "x" * 500
    assert from_words(words, 200).message == "x" * 200 + "..."
    assert "\x1b" not in from_words({**words, "message": "\x1b[2J"}).message


def test_what_was_raised_becomes_one_of_ours():
    known = CompositionError("FS103", "two losses")
    assert as_ours(known) is known
    assert str(as_ours(ValueError("no such axis"))) == "ValueError: no such axis [FS210]"
    full = as_ours(OSError(errno.ENOSPC, "No space left on device", "states"))
    assert (full.code, "Make room" in full.message) == ("FS243", True)


def test_the_client_is_named():
    found = about(3, DataError("FS303", "no such class"))
    assert isinstance(found, FedSieveError)
    assert (type(found), str(found)) == (DataError, "client 3: no such class [FS303]")
