"""Whether an ImageNet encoder is right, and how fast: logistic regression on its features of CIFAR-10.

The first 5,000 training and 2,000 test images, enlarged to 96 pixels, one thread. Goal of resnet50: a test
accuracy above 0.78. Features go to the cache folder, so a second start, or one after being cut off, computes only what
is missing.

    OMP_NUM_THREADS=1 python benchmarks/encoder_probe.py [--map resnet50] [--data cifar10] [--size 96]
"""

from __future__ import annotations

import argparse
import time

import sklearn
import torch
from header import header
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedsieve.data.features import feature_map, features_of
from fedsieve.data.sources import load_source
from fedsieve.data.sources.counting import counting

TIMED = 256
"""Images by which speed is measured, whether or not their features are in the cache."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", default="resnet50")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--train", type=int, default=5000)
    parser.add_argument("--test", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    versions = (f"torch {torch.__version__}", f"scikit-learn {sklearn.__version__}")
    header(f"a linear probe of {options.map} on {options.data}, {options.train} / {options.test} images", *versions)
    source = load_source(options.data)
    encoder = feature_map(options.map, options.size)
    begun = time.perf_counter()
    encoder(source.images[:TIMED])
    speed = TIMED / (time.perf_counter() - begun)
    train = features_of(source.images[: options.train], encoder, progress=counting)
    test = features_of(source.test_images[: options.test], encoder, progress=counting)
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.001, max_iter=200))
    probe.fit(train, source.labels[: options.train])
    accuracy = probe.score(test, source.test_labels[: options.test])
    print(f"{speed:.0f} images a second at {options.size} pixels, {train.shape[1]} features each")
    print(f"test accuracy {accuracy:.4f} (goal of resnet50: above 0.78)")


if __name__ == "__main__":
    main()
