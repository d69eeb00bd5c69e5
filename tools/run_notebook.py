"""Run the cells of a notebook in one namespace, without Jupyter, and write what they show into it.

    python tools/run_notebook.py docs/tutorial/first-steps.ipynb [--write]

Cells are Python; a line that begins with `!` is a command of the shell, which must succeed. The first error ends it.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
from base64 import b64encode
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
COMMAND = re.compile(r"^!(.+)$", re.MULTILINE)
DPI = 80


def run(notebook: dict[str, Any]) -> None:
    """Runs every cell of code; `outputs` become what it printed, its last value and its figures."""
    names: dict[str, Any] = {"__name__": "__main__", "_shell": _shell}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = _outputs("".join(cell["source"]), names, count)


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    printed = io.StringIO()
    with redirect_stdout(printed):
        value = _value(COMMAND.sub(lambda line: f"_shell({line[1]!r})", source), names, f"cell {count}")
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        about = {"output_type": "execute_result", "execution_count": count, "metadata": {}}
        outputs.append(about | {"data": _shown(value)})
    pictures = ({"output_type": "display_data", "metadata": {}, "data": {"image/png": one}} for one in _figures())
    return [*outputs, *pictures]


def _value(code: str, names: dict[str, Any], place: str) -> Any:
    """What the last line of a cell is worth; nothing where it is no expression."""
    tree = ast.parse(code, place)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, place, "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), place, "exec"), names)
    return eval(compile(ast.Expression(last.value), place, "eval"), names)


def _shell(command: str) -> None:
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="")


def _shown(value: Any) -> dict[str, Any]:
    """In the forms that Jupyter would ask for."""
    data: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    if hasattr(value, "_repr_png_"):
        data["image/png"] = b64encode(value._repr_png_()).decode()
    return data


def _figures() -> list[str]:
    from matplotlib import pyplot

    found = []
    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None})
        found.append(b64encode(content.getvalue()).decode())
    pyplot.close("all")
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def as_markdown(notebook: dict[str, Any]) -> str:
    """The notebook as a page, with what its cells showed when they were last written."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_as_markdown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _as_markdown(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", ())})
    if "image/png" in data:
        return f"![what the cell shows](data:image/png;base64,{data['image/png']})"
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"```\n{''.join(data['text/plain']).rstrip()}\n```"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the cells of a notebook.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="keep what the cells show in the file")
    options = parser.parse_args()
    content = json.loads(options.notebook.read_text(encoding="utf-8"))
    run(content)
    if options.write:
        text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True)
        options.notebook.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
