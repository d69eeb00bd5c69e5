import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsieve.testing import tiny_federation

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """No test pulls the plug, so nothing here need be on the disk; that and when it is asked for is in test_files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory) -> Path:
    """The tiny federation's images as an .npz file, for runs through the front door."""
    fed = tiny_federation(rows=40)
    rows, given = np.concatenate(fed.rows), np.concatenate(fed.given)
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    labels = np.arange(len(fed.test_images)) % 4
    np.savez(path, x_train=fed.images[rows], y_train=given, x_test=fed.test_images, y_test=labels)
    return path
