"""FedCR: contrastive representations where only the server has labels, and part of them are wrong (Mao et al.)."""

from __future__ import annotations

from dataclasses import replace

from fedsieve.core import Method
from fedsieve.methods.fedcr_exchange import Exchange
from fedsieve.methods.fedcr_regulariser import ContrastiveTerm, PairContrast
from fedsieve.parts.previous import OwnShare
from fedsieve.parts.published import vary
from fedsieve.parts.server_fit import ServerFit
from fedsieve.parts.server_labels import TAUGHT, Pretraining, ServerLabels
from fedsieve.parts.two_views import Perceptron


def fedcr(
    contrast: PairContrast,
    exchange: Exchange,
    own: OwnShare,
    pretraining: Pretraining,
    loss: ServerLabels = ServerLabels(q=0.6),
    server: ServerFit = TAUGHT,
    projector: Perceptron = Perceptron(times=8, widen=4),
    predictor: Perceptron = Perceptron(times=2),
) -> Method:
    """FedCR: the server learns its labels and the contrast, clients the contrast alone; only the online net comes back.

    Table 4: `q=0` is without GCE, `weight=0` without the regulariser, `decay=0` without EMA. Table 5: `pairs=mse`.
    Table 7: `exchange`.
    """
    contrast = replace(contrast, travels=exchange.nets == 2)
    at_server = vary(replace(contrast, target_from="own"), ContrastiveTerm)
    fit = replace(server, parts=(exchange.server_loss(loss), at_server))
    return Method(
        "fedcr",
        pretraining.stages(fit, exchange.clients(contrast, own)),
        heads=exchange.heads(projector, predictor),
        share=exchange.share(),
        nets=exchange.nets,
        turns="together",
    )
