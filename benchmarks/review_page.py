"""How soon the review page of 20,000 rows shows its first sample, and how long a decision takes in it.

In a real browser, from the address to the first image on the screen, and from a key to the next frame that shows the
next row. Goals: first paint below 1 s, a decision below 50 ms.

    python benchmarks/review_page.py [--rows 20000] [--trials 5] [--decisions 100]
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from header import header
from playwright.sync_api import Page, sync_playwright

from fedsieve.evaluate.schema import LABEL_COLUMNS, File

SHOWN = """() => { const image = document.querySelector("#shown img");
    return image?.complete && image.naturalWidth > 0 && performance.now(); }"""
DECIDE = """(key) => new Promise((done) => {
    const begun = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const handled = performance.now();
    requestAnimationFrame(() => setTimeout(() => done([handled - begun, performance.now() - begun])));
})"""
"""Milliseconds until the page is changed, and until the frame that shows it is drawn."""


def written(folder: Path, rows: int) -> Path:
    """One owner's images, and a run that flagged a fifth of their labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, rows)
    images = rng.integers(0, 256, (rows, 32, 32, 3), np.uint8)
    np.savez(folder / "many.npz", x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10])
    run = folder / "run"
    run.mkdir()
    (run / File.CONFIG).write_text(yaml.safe_dump({"data": str(folder / "many.npz"), "clients": 1}))
    score = rng.random(rows)
    suspects = score < 0.2
    suggested = np.where(suspects, (labels + 1) % 10, labels)
    columns = zip(range(rows), labels, suggested, score, suspects, strict=True)
    with (run / File.LABELS).open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(LABEL_COLUMNS)
        for i, a, b, s, f in columns:
            table.writerow([0, f"many[{i}]", a, b, f"{s:.6g}", str(bool(f)).lower(), "none", ""])
    return run


def served(run: Path) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "fedsieve", "review", str(run), "--no-open"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None, "the review did not start"
    return process, found[0]


def opened(page: Page, address: str) -> tuple[float, float]:
    """Milliseconds to the first paint, and to the first sample."""
    page.goto(address)
    sample: Any = page.wait_for_function(SHOWN).json_value()
    paint = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return float(paint), float(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=100)
    options = parser.parse_args()
    header(f"review page of {options.rows:,} rows in chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        process, address = served(written(Path(folder), options.rows))
        try:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            times = []
            for _ in range(options.trials):
                page = browser.new_context().new_page()
                times.append(opened(page, address))
            paints, samples = zip(*times, strict=True)
            print(f"first paint {statistics.median(paints):.0f} ms, first sample {statistics.median(samples):.0f} ms")
            decisions = [page.evaluate(DECIDE, "kt"[i % 2]) for i in range(options.decisions)]
            counted = page.text_content("#counted") or ""
            assert counted.startswith(f"{options.decisions} of "), f"not all keys decided: {counted}"
            handled, drawn = (sorted(column) for column in zip(*decisions, strict=True))
            for name, column in (("page changed", handled), ("frame drawn", drawn)):
                low, high = statistics.median(column), column[int(0.95 * len(column))]
                print(f"decision, {name}: median {low:.1f} ms, 95 % below {high:.1f} ms")
            browser.close()
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
