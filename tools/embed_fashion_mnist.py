"""Makes the embedded data set from Fashion-MNIST's four idx files (for instance of Debian's dataset-fashion-mnist).

    python tools/embed_fashion_mnist.py FOLDER_WITH_IDX_GZ src/fedsieve/data/embedded/fashion-mnist-small.npz

Takes the first 800 training and 200 test images of each class, in the original order: nothing is drawn.
"""

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np


def idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    shape = struct.unpack(">" + "I" * raw[3], raw[4 : 4 + 4 * raw[3]])
    return np.frombuffer(raw[4 + 4 * raw[3] :], np.uint8).reshape(shape)


def first_of_each_class(images: np.ndarray, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(10)]))
    return images[rows], labels[rows]


folder, target = Path(sys.argv[1]), Path(sys.argv[2])
x_train, y_train = first_of_each_class(
    idx(folder / "train-images-idx3-ubyte.gz"), idx(folder / "train-labels-idx1-ubyte.gz"), 800
)
x_test, y_test = first_of_each_class(
    idx(folder / "t10k-images-idx3-ubyte.gz"), idx(folder / "t10k-labels-idx1-ubyte.gz"), 200
)
np.savez_compressed(target, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
print(hashlib.sha256(target.read_bytes()).hexdigest(), target.stat().st_size)
