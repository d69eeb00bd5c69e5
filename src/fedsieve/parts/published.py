"""What the authors' code does otherwise than their paper says, where a method offers both.

The part that a method is made of is the paper's. A variant of it has the deviations alone, so that each of them can be
read beside what it replaces:

    class PublishedFilter(Published, SharedFilter): ...
"""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from fedsieve.core import Part

Variant = TypeVar("Variant", bound=Part)


class Published:
    """Stands before the part's class: messages, streams and state go under the name of the part itself."""

    @property
    def name(self) -> str:
        return type(self).__bases__[-1].__name__


def vary(part: Part, variant: type[Variant]) -> Variant:
    """The same options in a variant of the part's class."""
    return variant(**{field.name: getattr(part, field.name) for field in fields(part)})
