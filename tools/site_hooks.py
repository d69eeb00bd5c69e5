"""What the site needs besides the pages of docs/: entries for methods, notebooks and files that pages link to as pages,
the Python reference.

make docs
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
sys.path.append(str(Path(__file__).parent))
from run_notebook import as_markdown  # noqa: E402  # beside this file, which mkdocs loads by its path

LINK = re.compile(r"(?<=\]\()(?P<path>(?:\.\./)*[^):#\s]+)(?=[)#])")
PROJECT = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the repository that the site shows under their own names."""
PYTHON = {
    "fedsieve": "What the command line does, from Python.",
    "fedsieve.core": "What the author of a method imports.",
    "fedsieve.testing": "What tries a method.",
}
"""Modules whose `__all__` the Python reference shows."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Methods are listed by the names of their pages, so that a new one is found."""
    pages = sorted((Path(config.docs_dir) / "reference" / "methods").glob("*.md"))
    entries = [{page.stem: f"reference/methods/{page.name}"} for page in pages]
    assert config.nav is not None
    for section in config.nav:
        if "Methods" in section:
            section["Methods"] = entries
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files outside of docs/ that a page links to become part of the site, and the Python reference is made."""
    linked = {target for file in files.documentation_pages() for target in _outside(file.src_uri, file.content_string)}
    linked |= {target for page in PROJECT for target in _outside(page, (ROOT / page).read_text(encoding="utf-8"))}
    for target in sorted(linked.union(PROJECT)):
        files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    for notebook in sorted(Path(config.docs_dir).rglob("*.ipynb")):
        page = notebook.relative_to(config.docs_dir).with_suffix(".notebook.md")
        content = as_markdown(json.loads(notebook.read_text(encoding="utf-8")))
        files.append(File.generated(config, page.as_posix(), content=content))
    files.append(File.generated(config, "reference/python.md", content=_python_reference()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links as the site needs them, where what they lead to lies elsewhere in the repository."""
    here = posixpath.dirname(page.file.src_uri) or "."

    def inside(match: re.Match[str]) -> str:
        target = _in_repository(page.file.src_uri, match["path"])
        return posixpath.relpath(target.removeprefix("docs/"), here)

    return LINK.sub(inside, markdown)


def _outside(page: str, markdown: str) -> list[str]:
    """What a page links to that lies outside of docs/."""
    targets = (_in_repository(page, match["path"]) for match in LINK.finditer(markdown))
    return [target for target in targets if not target.startswith("docs/")]


def _in_repository(page: str, link: str) -> str:
    folder = "" if page in PROJECT else "docs"
    return posixpath.normpath(posixpath.join(folder, posixpath.dirname(page), link))


def _python_reference() -> str:
    from importlib import import_module

    lines = ["# Python", ""]
    for module, about in PYTHON.items():
        lines += [f"## {module}", "", about, ""]
        for name in import_module(module).__all__:
            lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)
