"""A folder in which anything may lie in the place of any file.

Its readers end, and show nothing from outside.
"""

from __future__ import annotations

import base64
import gzip
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st

from grpo_ext.common.foreign_files import check_tree
from grpo_ext.observe.jsonl import JsonLines
from grpo_ext.observe.report.page import write_report
from grpo_ext.observe.report.serve import ReportServer
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.read import read_yaml
from grpo_ext.trainer.manifest import newest_whole
from grpo_ext.trainer.state import CheckpointMismatch, load_plain
from tests.support import hostile_folders
from tests.support.hunting import hunt, in_child

KINDS = {kind.__name__: kind for kind in hostile_folders.KINDS}
SECRET = hostile_folders.SECRET
NAMES = [
    "notes.md",
    "recipe.yaml",
    "run.json",
    "suite.json",
    "metrics.jsonl",
    "metrics-0001.jsonl",
    "samples.jsonl",
    "samples-0001.jsonl",
    ".lock",
    "grpo",
    "grpo/metrics.jsonl",
    "checkpoint-1",
    "checkpoint-1/manifest.json",
    "checkpoint-1/grpo_state_0.pt",
    "checkpoint-1/model.safetensors",
]
LINES = [
    '{"step": 1, "reward": 0.5}',
    '{"step": 2, "x": ',
    '{"step": 1, "mode": "train"}',
    "a: {b: [1, 2]}",
    "a: &a [*a]",
    "[]",
    '{"model.safetensors": {"size": 1, "sha256": "0"}}',
    '{"../private/notes.md": {"size": 19, "sha256": "0"}}',
    "- " * 500,
]


def readers_end(files: list[tuple[str, str, str]]) -> None:
    """Read a run folder in all ways.

    Args:
        files: what is put there, in this order: a name, what lies there (a kind of
            `hostile_folders`, or "text"), and the text.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        private = Path(folder, "private")
        for name in NAMES:
            path = private / name
            if not path.parent.is_file() and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(SECRET)
        run = Path(folder, "runs", "run")
        JsonLines(run / "metrics.jsonl").append([{"step": 1, "reward": 0.5}])
        for name, kind, text in files:
            with suppress(OSError):  # something else lies there, or its folder is a file
                (run / name).parent.mkdir(exist_ok=True)
                (run / name).unlink(missing_ok=True)
                if kind == "text":
                    (run / name).write_text(text, errors="surrogateescape")
                else:
                    KINDS[kind](run / name, (private / name).parent)

        def body() -> None:
            page = Path(folder, "page.html")
            with suppress(FileNotFoundError):  # it is no run any more
                write_report([run], page)
                shown = page.read_text(encoding="utf-8")
                for block in shown.split('<script type="text/plain"')[1:]:
                    content = block.partition(">")[2].partition("<")[0]
                    assert SECRET.encode() not in gzip.decompress(base64.b64decode(content))
            with ReportServer([run.parent], 0) as server:
                answers = [server.answer("/runs", {})]
                for number in range(len(server.folders)):
                    for path in ("about", "changes", "metrics", "samples"):
                        answers.append(server.answer(f"/{path}/{number}", {"start": 0, "step": 0}))
                assert SECRET not in repr(answers)
            newest_whole(run)
            with suppress(OSError):
                check_tree(run)
            with suppress(CheckpointMismatch):
                load_plain(run / "checkpoint-1" / "grpo_state_0.pt")
            with suppress(RecipeError, OSError):
                read_yaml(run / "recipe.yaml", run)

        assert SECRET not in in_child(body, seconds=60, gibibytes=0.75)


@st.composite
def odd_file(draw: st.DrawFn) -> tuple[str, str, str]:
    name = draw(st.sampled_from(NAMES))
    if draw(st.booleans()):
        return name, draw(st.sampled_from(sorted(KINDS))), ""
    lines = draw(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=20)), max_size=4))
    return name, "text", "\n".join([*lines, ""])


def test_folders():
    hunt(readers_end, files=st.lists(odd_file(), min_size=1, max_size=5))
