"""The models that the key `model` names. Listing them does not load PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fedsieve.base.errors import ConfigError, nearest
from fedsieve.base.options import Option, import_object, options_of, several
from fedsieve.base.own_code import AllowCode, is_own, own_object

if TYPE_CHECKING:
    from torch import nn

    from fedsieve.models.base import Classifier
    from fedsieve.models.heads import Head


@dataclass(frozen=True)
class Entry:
    """Where a model is, and what it is in one line."""

    target: str
    summary: str


MODELS: dict[str, Entry] = {
    "cnn-lite": Entry("fedsieve.models.small:CnnLite", "two convolutions, 31 thousand parameters; the default"),
    "cnn4": Entry("fedsieve.models.small:Cnn4", "four convolutions of 64 channels; FedRN's net for CIFAR-10"),
    "fedds-mnist": Entry("fedsieve.models.small:FedDSMnist", "two convolutions and dropout; FedDS's net for MNIST"),
    "fedds-vgg": Entry("fedsieve.models.small:FedDSVgg", "six convolutions, VGG style; FedDS's net for CIFAR-10"),
    "resnet10": Entry("fedsieve.models.resnet:ResNet10", "residual net of 10 layers; FB-NLL's net for SVHN"),
    "resnet18": Entry("fedsieve.models.resnet:ResNet18", "residual net of 18 layers, 11 million parameters"),
    "resnet34": Entry("fedsieve.models.resnet:ResNet34", "residual net of 34 layers, 21 million parameters"),
    "resnet50": Entry("fedsieve.models.resnet:ResNet50", "residual net of 50 layers with bottlenecks, version 1"),
    "preact18": Entry("fedsieve.models.resnet:PreAct18", "pre-activation residual net of 18 layers; FedCR's net"),
    "mobilenetv2": Entry("fedsieve.models.mobilenet:MobileNetV2", "inverted residuals, 2.2 million parameters"),
    "linear": Entry("fedsieve.models.small:Linear", "one linear layer, for tables and texts"),
    "mlp": Entry("fedsieve.models.small:Mlp", "linear layers with ReLU, for tables and texts"),
}


def build_model(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    norm: str = "average",
    heads: tuple[Head, ...] = (),
    options: Mapping[str, Any] = {},
    allow_code: AllowCode = False,
) -> nn.Module:
    """A model by its name, or one's own by `package.module:Class`, made as `Class(shape, classes, norm, **options)`.

    `shape` is that of one sample: (channels, height, width), or (features,) for tables. The first weights are drawn
    from PyTorch's default generator, as every layer does: the caller forks and seeds it.
    """
    from fedsieve.models.heads import with_heads
    from fedsieve.models.norm import norm_layer

    target = _model_class(name, allow_code)
    known = options_of_model(name, allow_code) if options else {}
    for key in options:
        if key not in known:
            hint = nearest(key, known) if known else f"'{name}' has no options."
            raise ConfigError("FS001", f"unknown key 'model.{key}'. {hint}")
    checked = {key: known[key].check(value, "model.") for key, value in options.items()}
    model = _classifier(name, target(shape, classes, norm_layer(norm), **checked))
    return with_heads(model, heads, norm_layer(norm)) if heads else model


def options_of_model(name: str, allow_code: AllowCode = False) -> Mapping[str, Option]:
    """The options of a model: what its class takes beside shape, classes and norm."""
    target = _model_class(name, allow_code)
    # The first four parameters are self, shape, classes and norm.
    return dict(list(options_of(target.__init__).items())[4:])


def _model_class(name: str, allow_code: AllowCode) -> type[nn.Module]:
    from torch import nn

    if name not in MODELS and not is_own(name):
        raise ConfigError("FS004", f"unknown model '{name}'. {several(name) or nearest(name, MODELS)}")
    target = import_object(MODELS[name].target, "model") if name in MODELS else own_object(name, "model", allow_code)
    if not (isinstance(target, type) and issubclass(target, nn.Module)):
        raise ConfigError("FS006", f"model={name}: not a class derived from torch.nn.Module. Name such a class")
    try:
        inspect.signature(target).bind("shape", "classes", "norm")
    except TypeError as problem:
        raise ConfigError(
            "FS006",
            f"model={name}: cannot be made as Class(shape, classes, norm): {problem}. "
            "Let it take these three and give everything else a default",
        ) from None
    return target


def _classifier(name: str, model: nn.Module) -> Classifier:
    from torch import nn

    if not (callable(getattr(model, "features", None)) and isinstance(getattr(model, "head", None), nn.Linear)):
        raise ConfigError(
            "FS006",
            f"model={name}: lacks `features(x)` or a linear layer `head`. "
            "Derive it from fedsieve.models.base.Classifier and set `head`",
        )
    return cast("Classifier", model)  # own models may have the two without deriving from it
