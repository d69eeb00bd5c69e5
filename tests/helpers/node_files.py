"""Files of three nodes and of the server, and the settings of a run on them."""

import numpy as np

from fedsieve.testing import tiny_federation

CLASSES = ["one", "two", "three", "four"]
NODES = ("a", "b", "c")
SETTINGS = {
    "clients": 3,
    "rounds": 2,
    "epochs": 1,
    "batch": 20,
    "method": "fb-nll+fedrn",
    "fedrn.warmup": 1,
    "server.clean": 20,
}
"""FB-NLL asks its questions before training; of FedRN's rounds, one is after warm-up."""


def write_files(folder):
    """server.npz, a.npz, b.npz and c.npz: 40 samples of four classes each."""
    tiny = tiny_federation(rows=40)
    for name, rows, given in zip((*NODES, "server"), tiny.rows, tiny.given, strict=True):
        np.savez(
            folder / f"{name}.npz",
            x_train=tiny.images[rows],
            y_train=given,
            x_test=tiny.test_images,
            y_test=np.arange(len(tiny.test_images)) % 4,
            class_names=CLASSES,
        )
