"""The methods that the key `method` names. Listing them does not load PyTorch.

A method is one function that returns a `Method`; its parameters are parts, whose fields are the method's options.
`a+b` composes; the order in which they are written does not matter.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from fedsieve.base.errors import ConfigError, nearest
from fedsieve.base.options import Option, build, import_object, options_of, several
from fedsieve.base.own_code import AllowCode, is_own, named_place, own_object

if TYPE_CHECKING:
    from fedsieve.core.part import Method


@dataclass(frozen=True)
class Entry:
    """Where a method is, what it is in one line, and where it was published."""

    target: str
    summary: str
    source: str = ""


METHODS: dict[str, Entry] = {
    "local": Entry("fedsieve.methods.plain:local", "each client trains alone; nothing is shared"),
    "fedavg": Entry("fedsieve.methods.plain:fedavg", "the weighted mean of the clients' models", "McMahan et al. 2017"),
    "fedprox": Entry(
        "fedsieve.methods.plain:fedprox", "a proximal term holds local models to the global one", "Li et al. 2020"
    ),
    "scaffold": Entry(
        "fedsieve.methods.scaffold:scaffold", "control variates correct client drift", "Karimireddy et al. 2020"
    ),
    "moon": Entry(
        "fedsieve.methods.moon:moon", "features are drawn to the global model's, away from the past", "Li et al. 2021"
    ),
    "oracle": Entry("fedsieve.methods.oracle:oracle", "FedAvg on the rightly labelled samples only: an upper bound"),
    "fedrn": Entry(
        "fedsieve.methods.fedrn:fedrn", "reliable neighbours' models help pick clean samples", "Kim et al. 2022"
    ),
    "co-teaching": Entry(
        "fedsieve.methods.co_teaching:co_teaching", "two models pick each other's clean samples", "Han et al. 2018"
    ),
    "joint": Entry(
        "fedsieve.methods.joint:joint", "labels are replaced by the mean of past predictions", "Tanaka et al. 2018"
    ),
    "selfie": Entry(
        "fedsieve.methods.selfie:selfie", "trains on small losses and on labels it can refurbish", "Song et al. 2019"
    ),
    "dividemix": Entry(
        "fedsieve.methods.dividemix:dividemix", "two models tell each other which labels to use", "Li et al. 2020"
    ),
    "robust-fl": Entry(
        "fedsieve.methods.robust_fl:robust_fl", "labels near the shared class centroids are trusted", "Yang et al. 2022"
    ),
    "fedds": Entry(
        "fedsieve.methods.fedds:fedds", "clients weigh as much as their votes are reliable", "Dong et al. 2026"
    ),
    "focus": Entry(
        "fedsieve.methods.focus:focus",
        "clients count by their loss on clean labels and on their own",
        "Chen et al. 2020",
    ),
    "client-selection": Entry(
        "fedsieve.methods.client_selection:client_selection",
        "the clients that do best on clean labels are averaged or sampled",
        "after Yang et al. 2021",
    ),
    "clipfl": Entry(
        "fedsieve.methods.clipfl:clipfl",
        "screens clients on clean labels, then trains without the suspected",
        "Morafah et al. 2025",
    ),
    "fb-nll": Entry(
        "fedsieve.methods.fb_nll:fb_nll",
        "clusters clients and corrects labels in feature space before training",
        "Ali & Arafa 2026",
    ),
    "fb-nll-minus": Entry(
        "fedsieve.methods.fb_nll:fb_nll_minus",
        "fb-nll without the correction: one model per cluster",
        "Ali & Arafa 2026",
    ),
    "fb-nll-repair": Entry(
        "fedsieve.methods.fb_nll:fb_nll_repair",
        "fb-nll's correction alone, before any other method",
        "Ali & Arafa 2026",
    ),
    "audit": Entry(
        "fedsieve.methods.audit:audit", "scores and mends labels from sums of frozen features, before any training"
    ),
    "sieve": Entry(
        "fedsieve.methods.sieve:sieve", "the default: audits labels before training and by the model, averages models"
    ),
    "averaged": Entry(
        "fedsieve.methods.averaged:averaged",
        "what is tested and saved is an average of the server's last models, in any method",
        "after Brown 1959",
    ),
    "fedcorr": Entry(
        "fedsieve.methods.fedcorr:fedcorr",
        "finds noisy clients by their outputs' dimension, mends their labels",
        "Xu et al. 2022",
    ),
    "fednoro": Entry(
        "fedsieve.methods.fednoro:fednoro",
        "noisy clients, found by class losses, distil and weigh less",
        "Wu et al. 2023",
    ),
    "ifca": Entry(
        "fedsieve.methods.ifca:ifca", "several models; each client trains the one that fits it", "Ghosh et al. 2022"
    ),
    "rhfl": Entry(
        "fedsieve.methods.rhfl:rhfl", "no model travels; answers to public images are aligned", "Fang & Ye 2022"
    ),
    "fedlsr": Entry(
        "fedsieve.methods.fedlsr:fedlsr",
        "two views of a sample must be predicted alike, and sharply",
        "Jiang et al. 2022",
    ),
    "feddiv": Entry(
        "fedsieve.methods.feddiv:feddiv", "all clients together learn one filter for wrong labels", "Li et al. 2024"
    ),
    "fedelc": Entry(
        "fedsieve.methods.fedelc:fedelc",
        "noisy clients, found by class losses, learn their labels",
        "Jiang et al. 2024",
    ),
    "ksim": Entry(
        "fedsieve.methods.ksim:ksim",
        "a frozen encoder's neighbourhoods hold the clients' features together",
        "anonymous, under review",
    ),
    "fedln-akd": Entry(
        "fedsieve.methods.fedln_akd:fedln_akd",
        "noisy clients learn a frozen encoder's features beside their labels",
        "Tsouvalas et al. 2024",
    ),
    "fedln-nnc": Entry(
        "fedsieve.methods.fedln_nnc:fedln_nnc",
        "noisy clients take the labels of each sample's neighbours, before any method",
        "Tsouvalas et al. 2024",
    ),
    "fedln-na": Entry(
        "fedsieve.methods.fedln_na:fedln_na",
        "clients whose samples the model is soon sure of count less",
        "Tsouvalas et al. 2024",
    ),
    "simclr": Entry(
        "fedsieve.methods.simclr:simclr",
        "an encoder without labels: two views of an image are told from all others",
        "Chen et al. 2020",
    ),
    "byol": Entry(
        "fedsieve.methods.byol:byol", "an encoder without labels: one view predicts the other", "Grill et al. 2020"
    ),
    "fedu": Entry(
        "fedsieve.methods.byol:fedu", "byol; a client far from the others keeps its predictor", "Zhuang et al. 2021"
    ),
    "fedema": Entry(
        "fedsieve.methods.byol:fedema",
        "byol; a client starts between the global model and its own",
        "Zhuang et al. 2022",
    ),
    "fedcr": Entry(
        "fedsieve.methods.fedcr:fedcr",
        "labels at the server; clients draw views and sure pairs together",
        "Mao et al., Applied Soft Computing",
    ),
    "server-sl": Entry(
        "fedsieve.methods.server_sl:server_sl", "the server learns alone from its labels: a lower bound"
    ),
    "fixmatch": Entry(
        "fedsieve.methods.fixmatch:fixmatch",
        "clients without labels follow their sure guesses on other views",
        "Sohn et al. 2020",
    ),
    "uda": Entry(
        "fedsieve.methods.uda:uda",
        "clients without labels predict two views alike where they are sure",
        "Xie et al. 2020",
    ),
    "fedmatch": Entry(
        "fedsieve.methods.fedmatch:fedmatch",
        "the server learns one summand of the weights, clients the other",
        "Jeong et al. 2021",
    ),
    "semifl": Entry(
        "fedsieve.methods.semifl:semifl",
        "clients fix sure guesses for a round and mix them with the rest",
        "Diao et al. 2022",
    ),
    "fedanchor": Entry(
        "fedsieve.methods.fedanchor:fedanchor",
        "clients guess by the server's labelled samples, its anchors",
        "Qiu et al. 2024",
    ),
    "fl2": Entry(
        "fedsieve.methods.fl2:fl2",
        "clients accept guesses by thresholds of their own; the less sure weigh more",
        "Lee et al. 2024",
    ),
    "fedcon": Entry(
        "fedsieve.methods.fedcon:fedcon",
        "clients learn the body from two views, the server body and classifier",
        "Long et al. 2021",
    ),
    "ssfl": Entry(
        "fedsieve.methods.ssfl:ssfl",
        "clients follow sure guesses in groups, each with the server beside them",
        "Zhang et al. 2021",
    ),
    "rscfed": Entry(
        "fedsieve.methods.rscfed:rscfed",
        "clients follow their teachers, the server a consensus of subsets of them",
        "Liang et al. 2022",
    ),
    "ce": Entry("fedsieve.methods.losses:ce", "loss: cross entropy, the default"),
    "symce": Entry("fedsieve.methods.losses:symce", "loss: symmetric cross entropy", "Wang et al. 2019"),
    "gce": Entry("fedsieve.methods.losses:gce", "loss: generalised cross entropy", "Zhang & Sabuncu 2018"),
    "mae": Entry("fedsieve.methods.losses:mae", "loss: mean absolute error", "Ghosh et al. 2017"),
    "logitclip": Entry("fedsieve.methods.losses:logitclip", "loss: cross entropy on clipped logits", "Wei et al. 2023"),
    "logit-adjust": Entry(
        "fedsieve.methods.losses:logit_adjust", "loss: cross entropy adjusted to local class sizes", "Menon et al. 2021"
    ),
}


def canonical(name: str) -> str:
    """`a+b` in one order: that of `METHODS`, own methods last; a name given twice counts once."""
    order = list(METHODS)
    parts = dict.fromkeys(part.strip() for part in name.split("+"))
    for part in parts:
        if part not in METHODS and not is_own(part):
            raise ConfigError("FS004", f"unknown method '{part}'. {several(part) or nearest(part, METHODS)}")
    return "+".join(sorted(parts, key=lambda part: (order.index(part) if part in METHODS else len(order), part)))


def label(part: str) -> str:
    """What stands before the dot in the options of one method: its name, or its function's for one's own."""
    return part.rpartition(":")[2]


def method_options(name: str, allow_code: AllowCode = False) -> dict[str, Mapping[str, Option]]:
    """For each method of `a+b`, by its label, the options it has."""
    return {label(part): options_of(_function(part, allow_code)) for part in canonical(name).split("+")}


def build_method(name: str, options: Mapping[str, Mapping[str, Any]], allow_code: AllowCode = False) -> Method:
    """The composed method; `options` are by label and name."""
    from fedsieve.methods.compose import compose

    return compose(*(_build_one(part, options.get(label(part), {}), allow_code) for part in canonical(name).split("+")))


def _build_one(part: str, options: Mapping[str, Any], allow_code: AllowCode) -> Method:
    from fedsieve.core.part import Method

    function = _function(part, allow_code)
    with named_place(f"method={part}: cannot be built"):
        made = build(function, options, label(part))
    if not isinstance(made, Method):
        raise ConfigError("FS006", f"method={part}: returned {type(made).__name__}. It must return a fedsieve Method")
    return made


def _function(part: str, allow_code: AllowCode) -> Any:
    """The function that makes a method; one's own is looked at before it is called."""
    if part in METHODS:
        return import_object(METHODS[part].target, "method")
    from fedsieve.core.part import Method

    target = own_object(part, "method", allow_code)
    try:
        returns = get_type_hints(target).get("return") if inspect.isfunction(target) else None
    except (NameError, TypeError, SyntaxError):
        returns = None
    if returns is not Method:
        raise ConfigError(
            "FS006", f"method={part}: not a function that is annotated to return fedsieve's Method. Write `-> Method`"
        )
    return target
