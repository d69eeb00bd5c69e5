"""Folders of runs whose labels were judged, without the training: a review needs no more than settings and labels."""

import csv

import numpy as np
import yaml
from PIL import Image

import fedsieve
from fedsieve.evaluate.schema import LABEL_COLUMNS, File

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 60), "blue": (40, 60, 210)}


def colour_folder(root, owners=("north", "south"), each=12, seed=0):
    """CLIENT/CLASS/image: every image has the colour of its class, but of each ten one lies in the wrong folder."""
    rng = np.random.default_rng(seed)
    names = list(COLOURS)
    for owner in owners:
        for number in range(each * len(names)):
            true = number % len(names)
            given = (true + 1) % len(names) if number % 10 == 3 else true
            pixels = np.clip(rng.normal(COLOURS[names[true]], 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            place = root / owner / names[given]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number:03d}-{names[true]}.png")
    return root


def judged_run(folder, suspicious, **settings):
    """A run's folder: `suspicious(where, given name)` gives (suggested, score), or None for a row that nobody suspects.

    Returns the federation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / File.CONFIG).write_text(yaml.safe_dump(settings))
    federation, _ = fedsieve.federation(**settings)
    rows = []
    for client in range(federation.clients):
        for where, label in zip(federation.places(client), federation.given[client], strict=True):
            given = federation.class_names[label]
            suggested, score = suspicious(where, given) or (given, 0.9)
            flagged = str(suggested != given or score < 0.5).lower()
            rows.append([federation.owner(client), where, given, suggested, score, flagged, "tried"])
    write_labels(folder / File.LABELS, rows)
    return federation


def write_labels(file, rows):
    """A row that ends with its method has no twin."""
    rows = ([*row, *[""] * (len(LABEL_COLUMNS) - len(row))] for row in rows)
    with file.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle, lineterminator="\n").writerows([LABEL_COLUMNS, *rows])


def by_file_name(where, given):
    """The true class stands in the name of an image of `colour_folder`."""
    true = where.rsplit("-", 1)[1].removesuffix(".png")
    return None if true == given else (true, 0.01 + 0.0001 * int(where.split("/")[-1][:3]))


def coloured_run(tmp_path, **more):
    """Two owners' folders of images, and a run that found all wrong ones."""
    data = colour_folder(tmp_path / "scans")
    folder = tmp_path / "run"
    federation = judged_run(folder, by_file_name, data=str(data), **{"data.test_fraction": 0.2} | more)
    return folder, data, federation
