"""The command `fedsieve features`."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedsieve.base.errors import ConfigError
from fedsieve.cli.arguments import Json, interruptible

MAPS = "hog, pixels, random[:SEED], resnet50, efficientnet-lite0 (1, 2), FILE.safetensors, or hf:NAME."


class Part(StrEnum):
    """Which images of a data set."""

    train = "train"
    test = "test"


def features(
    data: Annotated[str, typer.Argument(help="A data set, named as behind `data=`.", show_default=False)],
    map_name: Annotated[
        str,
        typer.Option("--map", help=MAPS, show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="The .npy file to write.", show_default=False)],
    size: Annotated[
        int | None, typer.Option(help="Side to which images are brought, where the map takes a choice.", min=1)
    ] = None,
    part: Annotated[Part, typer.Option(help="Which images.")] = Part.train,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Write the features of a data set's images. Example: fedsieve features cifar10 --map hog --out hog.npy"""
    if out.suffix != ".npy" or out.is_dir():
        raise ConfigError("FS002", f"--out {out}: not a file that ends with .npy. Name one")

    import numpy as np

    from fedsieve.data.features import feature_map, features_of
    from fedsieve.data.features.cache import silently
    from fedsieve.data.sources import load_source
    from fedsieve.data.sources.counting import counting

    encode = feature_map(map_name, size)
    source = load_source(data)
    images = source.images if part is Part.train else source.test_images
    with interruptible():
        table = features_of(images, encode, progress=silently if quiet else counting)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.save(file, table)
    temporary.replace(out)
    rows, width = table.shape
    if as_json:
        typer.echo(
            json.dumps({"file": str(out), "map": encode.name, "key": encode.key, "rows": rows, "features": width})
        )
    else:
        typer.echo(f"{out}: {rows:,} rows of {width:,} {encode.name} features")
