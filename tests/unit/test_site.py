"""The documentation as a site: every page is in it, every link leads somewhere."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    pages = {Path("index.html") if page == Path("README.html") else page for page in pages}
    assert pages <= {path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")}
    for notebook in (ROOT / "docs").rglob("*.ipynb"):
        page = tmp_path / notebook.relative_to(ROOT / "docs").with_suffix(".notebook.html")
        assert "data:image/png;base64," in page.read_text(encoding="utf-8"), "what its cells show is in the page"
    reference = (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    assert all(f'id="fedsieve.{name}"' in reference for name in ("run", "core.Part", "testing.check_method"))
