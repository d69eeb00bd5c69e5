"""What every benchmark says first."""

from datetime import UTC, datetime

import numpy as np

from fedsieve.base.hardware import hardware


def header(what: str, *versions: str) -> None:
    print(f"# what: {what}")
    print(f"# hardware: {hardware()}; {', '.join([*versions, f'numpy {np.__version__}'])}")
    print(f"# date: {datetime.now(UTC):%Y-%m-%d}", flush=True)
