"""The report in a real browser: what lies under the pointer tells its value, and nothing is asked of the network.

Debian's chromium is driven by playwright. Where one of them is missing, the test says so and is skipped.
"""

import shutil

import pytest
from run_folders import make_run

from fedsieve.report.html import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: `make browser` installs it")
POINTED = """
(heading) => {
  const titles = [...document.querySelectorAll("section > h2")];
  const section = titles.find(title => title.textContent === heading).parentElement;
  return [...section.querySelectorAll("rect[pointer-events]")].map(rect => {
    rect.scrollIntoView({block: "center"});
    const box = rect.getBoundingClientRect();
    const met = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return [rect.querySelector("title").textContent, met === rect];
  });
}
"""


def test_what_lies_under_the_pointer_tells_its_value(tmp_path):
    page = write_report([make_run(tmp_path / "run")], tmp_path / "report.html")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")
        asked = []
        view.on("request", lambda request: asked.append(request.url))
        view.goto(page.as_uri())
        found = {name: view.evaluate(POINTED, name) for name in ("Accuracy", "Label noise", "Classes", "Time")}
        browser.close()
    assert asked == [page.as_uri()]
    assert all(met for pairs in found.values() for _, met in pairs)
    assert ["client 1: 10.0 % wrong, nominal 20.0 %", True] in found["Label noise"]
    assert ["fedrn, round 4: 90.00 %", True] in found["Accuracy"]
    assert ["cat $x$, predicted cat $x$: 4", True] in found["Classes"]
    assert ["round 1: train 1.50 s, evaluate 0.50 s", True] in found["Time"]
