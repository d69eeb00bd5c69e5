"""The contract that every method keeps, one's own included.

    from fedsieve.testing import check_method
    check_method("my_methods:mine")

Everything runs in this process on a tiny made-up federation; a broken promise raises AssertionError and says which.
"""

from fedsieve.testing.checks import CHECKS, check_method
from fedsieve.testing.contract import Contract
from fedsieve.testing.fakes import fake_client, fake_reports, fake_server
from fedsieve.testing.tiny import Trap, tiny_federation
from fedsieve.testing.trial import Interruption, Listening, Record, Trial

__all__ = [
    "CHECKS",
    "Contract",
    "Interruption",
    "Listening",
    "Record",
    "Trap",
    "Trial",
    "check_method",
    "fake_client",
    "fake_reports",
    "fake_server",
    "tiny_federation",
]
