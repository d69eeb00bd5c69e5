"""What a result was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def hardware() -> str:
    """The processor and its cores, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.machine())}, {os.cpu_count()} cores"
