"""Server-SL: supervised learning on the server's labels alone, a lower bound for methods whose clients have none."""

from __future__ import annotations

from dataclasses import replace

from fedsieve.core import Method, Nobody, Stage
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels


def server_sl(loss: ServerLabels, pretraining: Pretraining, server: ServerFit = TAUGHT) -> Method:
    """The server trains as it would beside clients, round by round and as long; the clients do nothing."""
    fit = replace(server, parts=(loss,))
    return Method("server-sl", pretraining.stages(fit, Stage(sampler=Nobody())))
