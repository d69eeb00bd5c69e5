"""The page as one file, for people who cannot start a server: rows and images are in it, decisions stay in the browser.

It says nothing of controls and draws no conclusion. What is downloaded from it is a file like any other.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

from fedsieve.base.disk import write_bytes
from fedsieve.base.errors import ConfigError
from fedsieve.review.desk import Desk
from fedsieve.review.pages import PAGE, STYLE

MODULES = (
    "dom.js", "sha256.js", "store.js", "kept.js", "shown.js", "choose.js", "single.js", "many.js", "panels.js",
    "main.js",
)  # fmt: skip
"""Each before those that import it; `kept.js` stands for the server."""
SIDES = {"large": 360, "small": 96}
EVIDENCE = 3
"""Rows of evidence for a class: every one brings an image."""


def write_static(desk: Desk, target: Path, most: int) -> str:
    """Write the first rows of the queue; returns what to say of it."""
    if target.exists():
        raise ConfigError("FS005", f"{target} exists. Choose another file")
    desk.prepare()
    content = _content(desk, most)
    write_bytes(target, _page(content).encode())
    rows, size = len(content["overview"]["order"]), target.stat().st_size / 1e6
    return f"{target}: {rows} rows, {size:.1f} MB; it opens in any browser and needs no network"


def _content(desk: Desk, most: int) -> dict[str, Any]:
    overview = desk.overview()
    shown = overview["order"][: min(most, overview["suspicious"])]
    kept = overview | {"order": shown, "suspicious": len(shown), "decided": [], "minutes": None}
    samples = {row: _cut(desk.sample(row)) for row in shown}
    small = {near["row"] for sample in samples.values() for found in sample["evidence"].values() for near in found}
    small |= {sample["twin"]["row"] for sample in samples.values() if "twin" in sample}
    images: dict[int, dict[str, str]] = {}
    if desk.subject.material.kind == "image":
        images = {row: {"small": _data_uri(desk, row, "small")} for row in sorted({*shown, *small})}
        for row in shown:
            images[row]["large"] = _data_uri(desk, row, "large")
    judged = desk.subject.hashes.model_dump()
    return {"overview": kept, "samples": samples, "images": images, "judged": judged}


def _cut(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"evidence": {name: found[:EVIDENCE] for name, found in sample["evidence"].items()}}


def _data_uri(desk: Desk, row: int, side: str) -> str:
    content, kind = desk.subject.material.picture(row, SIDES[side])
    return f"data:{kind};base64,{b64encode(content).decode()}"


def _page(content: dict[str, Any]) -> str:
    """The page of the server with its parts put in, and a policy that allows these alone."""
    script = bundled()
    style = "".join(file.read_text(encoding="utf-8") for file in (STYLE, PAGE / "review.css"))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    text = (PAGE / "review.html").read_text(encoding="utf-8")
    text = re.sub(r'<link rel="(stylesheet|icon)"[^>]*>\n', "", text)
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n</head>'
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    body = (
        f'<script type="application/json" id="review-data">{data}</script>\n<script type="module">{script}</script>\n'
    )
    text = text.replace('<script type="module" src="main.js"></script>\n', body)
    return text.replace("</head>", head, 1)


def bundled() -> str:
    """All modules as one: their names differ, so imports and exports can go."""
    parts = [(PAGE / name).read_text(encoding="utf-8") for name in MODULES]
    plain = [re.sub(r"^import .*\n", "", part, flags=re.MULTILINE) for part in parts]
    return "".join(re.sub(r"^export ", "", part, flags=re.MULTILINE) for part in plain)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
