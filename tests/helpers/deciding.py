"""Files of decisions, written as a review writes them."""

from fedsieve.data.decisions import Judged
from fedsieve.review.log import Entry, Log


def decided(file, *entries, reader="ann"):
    """Each entry is (where, before, action, after); owners do not matter here."""
    log = Log(file, reader, Judged(labels="b" * 64, model="c" * 64))
    log.write([Entry(("north", where), before, after, action) for where, before, action, after in entries])
    return file
