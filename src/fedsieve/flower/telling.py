"""What a node says of its own trouble: a code and a sentence without any value. The full text stays in its log."""

from __future__ import annotations

import logging
from typing import Any

from fedsieve.base.error_words import as_ours, to_words
from fedsieve.base.errors import FedSieveError

LOG = logging.getLogger("fedsieve.node")
SENTENCES = {
    "FS001": "its settings have a key that it does not know",
    "FS002": "its settings have a value that is not possible",
    "FS004": "it does not know a name of the settings; install the same fedsieve on server and nodes",
    "FS006": "code of its own cannot be used",
    "FS008": "a package is not installed on it",
    "FS010": "the settings name code that it does not allow",
    "FS205": "it has lost its state of an earlier round",
    "FS206": "code of its own sends what it does not declare",
    "FS210": "its code failed",
    "FS221": "it does not know where its data are: start flower-supernode with --node-config 'data=\"PATH\"'",
    "FS224": "the message does not tell what it should; install the same fedsieve on server and nodes",
    "FS226": "it has no public samples; start the app again, which sends them again",
    "FS228": "the settings name a file or a download that it does not allow",
    "FS229": "its key cannot be used",
    "FS232": "it has other weights than the server, or none; start the app again, which sends files of them",
    "FS301": "a file of its data is missing",
    "FS302": "a file of its data, or a cell in it, cannot be read as what it should be",
    "FS303": "its data have a label that is not one of the classes",
    "FS304": "its data have a cell that is empty or not finite",
    "FS305": "its data have too few rows",
    "FS306": "its data have only one class",
    "FS307": "its data lack rows or labels that are needed",
    "FS308": "its data have too few rows",
    "FS309": "its samples differ in size or shape",
    "FS312": "its data cannot be loaded from the hub",
    "FS313": "something stands twice in its data",
    "FS320": "its data are larger than it allows",
    "FS321": "its data hold something that is no regular file",
}
"""By code. What has no sentence here is told by its code alone."""


def tell(problem: Exception) -> dict[str, Any]:
    """The reply of a node whose work failed."""
    known = as_ours(problem)
    LOG.error("%s", known, exc_info=None if isinstance(problem, FedSieveError) else problem)
    sentence = SENTENCES.get(known.code, "it could not go on")
    return to_words(type(known)(known.code, f"{sentence}; see the node's log"))
