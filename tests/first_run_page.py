"""Run `examples/first_run.ipynb`, and write `docs/first-run.md` from what its cells printed.

`make notebook` runs it. The notebook itself stays without outputs.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.places import REPO

NOTEBOOK = REPO / "examples" / "first_run.ipynb"
PAGE = REPO / "docs" / "first-run.md"
PICTURE = PAGE.with_suffix(".png")
TITLE = "# A first run\n"
INTRODUCTION = """
This page is the notebook `examples/first_run.ipynb` with the output of its cells on a CPU, where
the model is SmolLM2-135M-Instruct. The notebook has not been run on a GPU yet. On a hosted machine,
first upload or clone the checkout, and open the notebook in its folder `examples`, because the
first cell installs the checkout. `make notebook` runs the notebook again and writes this page.
"""
# Colors of a terminal, and what a progress bar writes over.
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|^.*\r(?!\n)", re.MULTILINE)


def run_notebook(
    folder: Path,
    environment: Mapping[str, str],
    seconds: int | None = None,
) -> NotebookNode:
    """Run all cells of the notebook in a new kernel, and return it with its outputs.

    Args:
        folder: the folder in which the kernel starts, which gets the files of the run.
        environment: environment variables that are added to those of this process.
        seconds: how long a cell may take; `None`: as long as it needs.

    Raises:
        CellExecutionError: if a cell fails.
    """
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=seconds, kernel_name="python3", resources=resources)
    variables = {**os.environ, "PYTHONPATH": python_path(), **environment}
    client.execute(env=variables)
    return notebook


def python_path() -> str:
    """Return a PYTHONPATH by which a kernel in another folder finds this checkout."""
    others = os.environ.get("PYTHONPATH")
    return f"{REPO}{os.pathsep}{others}" if others else str(REPO)


def printed(output: NotebookNode) -> str:
    """Return what a cell printed or returned as text; `""` for a picture, a bar and stderr."""
    if output.output_type == "stream":
        return TERMINAL_CODES.sub("", output.text) if output.name == "stdout" else ""
    if output.output_type != "execute_result" or "image/png" in output.data:
        return ""
    return output.data["text/plain"]


def pictures(notebook: NotebookNode) -> list[bytes]:
    """Return the pictures that the cells have shown, as PNG."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                found.append(base64.b64decode(output.data["image/png"]))
    return found


def block(kind: str, text: str) -> str:
    """Return a block of Markdown, whose fence is longer than any that a model writes."""
    text = text.strip("\n")
    return f"`````{kind}\n{text}\n`````\n"


def page(notebook: NotebookNode) -> str:
    """Return the page: texts, code, and under each cell what it printed and showed."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(f"{cell.source}\n")
            continue
        parts.append(block("python", cell.source))
        texts = [printed(output).strip("\n") for output in cell.outputs]
        text = "\n".join(filter(None, texts))
        if text.strip():
            parts.append(block("text", text))
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            parts.append(f"![Curves of the run]({PICTURE.name})\n")
    return "\n".join(parts).replace(TITLE, f"{TITLE}{INTRODUCTION}", 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        executed = run_notebook(Path(folder), {})
    [picture] = pictures(executed)
    PICTURE.write_bytes(picture)
    PAGE.write_text(page(executed), encoding="utf-8")
    print(f"{PAGE.relative_to(REPO)} is written.")
