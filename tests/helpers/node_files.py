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

FIXMATCH = {"method": "fixmatch", "client_labels": False, "server.noisy": 30}
FIXMATCH |= {"fixmatch.threshold": 0.3, "fixmatch.pretrain": 2, "fixmatch.server.epochs": 1}
"""Labels are the server's alone; clients that have barely learnt follow their guesses all the same."""


def without_labels(folder):
    """Leave the nodes their samples and nothing else."""
    for name in NODES:
        with np.load(folder / f"{name}.npz") as file:
            samples = file["x_train"]
        np.savez(folder / f"{name}.npz", x_train=samples)


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
