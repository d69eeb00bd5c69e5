"""One line a method: the sha256 of what two rounds on the tiny federation leave at server and clients.

Other processors and libraries round otherwise, so nothing is stored. Before a change that should not alter a bit:

    python tests/golden/hashes.py > before.txt

and after it compare: `python tests/golden/hashes.py | diff before.txt -`.
"""

import hashlib
import sys

import torch

from fedsieve.methods import METHODS
from fedsieve.testing import Contract

COMPOSED = (
    "fedcorr+fb-nll",
    "scaffold+fedds",
    "fedrn+fedds+fedprox",
    "dividemix+fedds",
    "rhfl+fb-nll-minus",
    "ifca+symce",
)


def digest(method: str) -> str:
    found = hashlib.sha256()
    with Contract.of(method, {"rounds": 2}).trial() as trial:
        state = trial.run()
        for group in state.groups():
            for model in state.models[group]:
                found.update(model.numpy().tobytes())
        for client, version in sorted(state.versions.items()):
            for name, value in sorted(trial.states.load(client, version).items()):
                found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method in (*METHODS, *COMPOSED):
        sys.stdout.write(f"{digest(method)}  {method}\n")
        sys.stdout.flush()
