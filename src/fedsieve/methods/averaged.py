"""The average of the server's last models, beside any method whose clients have a model in common."""

from __future__ import annotations

from fedsieve.core import Method, Stage
from fedsieve.parts.model_average import ModelAverage


def averaged(average: ModelAverage) -> Method:
    """What is tested and saved is an average of the server's last models; clients go on with the newest one.

    There is no paper. As it costs a client nothing and needs no labels, it tells what of a gain is due to averaging.
    """
    return Method("averaged", (Stage(parts=(average,)),))
