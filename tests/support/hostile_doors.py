"""The seven ways by which this package reads what somebody else has written, each with a folder in
which one file is hostile: `report`, `report --serve`, `resume`, `eval`, `merge`, `init` and
`check`.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from tests.support import hostile_folders, hostile_models
from tests.support.hostile_folders import FLAG, SECRET

MODEL = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
    "generation_config.json",
    "pytorch_model.bin",
]
RUN = [
    "run/samples.jsonl",
    "run/metrics.jsonl",
    "run/run.json",
    "run/suite.json",
    "run/recipe.yaml",
    "run/notes.md",
    "run/.lock",
    "run/samples-0001.jsonl",
]
CHECKPOINT = [
    f"run/checkpoint-2/{name}" for name in ("manifest.json", "grpo_state_0.pt", "model.safetensors")
]
MODEL_FILES = [f"model/{name}" for name in MODEL]
DATA = ["data/train.jsonl", "data/train.parquet", "data/train.csv", "data/train.json"]
PLACES: dict[str, list[str]] = {
    "report": RUN,
    "live page": RUN,
    "resume": [*CHECKPOINT, "run/recipe.yaml"],
    "eval": MODEL_FILES,
    "merge": ["adapter/adapter_config.json", "adapter/adapter_model.safetensors", *MODEL_FILES],
    "init": [*DATA, *MODEL_FILES],
    "check": [*DATA, *MODEL_FILES, "recipe.yaml", "run/recipe.yaml"],
}
FILE_KINDS = {kind.__name__: kind for kind in [*hostile_folders.KINDS, hostile_folders.crowd]}
MODEL_KINDS = {kind.__name__: kind for kind in hostile_models.MODEL_KINDS}
BUSY_KINDS = ("growing", "swapped")  # which go on while the file is read
BUSY: list[tuple[threading.Thread, threading.Event]] = []  # of these kinds, with what ends them


def make_base(folder: Path, model: Path) -> None:
    """Write a whole run, model, adapter, data and recipe, and beside them files that are only for
    the reader.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from grpo_ext.observe.jsonl import JsonLines
    from grpo_ext.trainer.manifest import write_manifest

    shutil.copytree(model, folder / "model")
    adapter = get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder / "model"), LoraConfig(task_type="CAUSAL_LM")
    )
    adapter.save_pretrained(folder / "adapter")
    run = folder / "run"
    row = {
        "step": 1,
        "mode": "train",
        "dataset": "train",
        "prompt_id": "0",
        "group": 0,
        "prompt": "?",
        "text": "text",
        "rewards": {"countdown": 0.0},
        "reward": 0.0,
        "advantage": 0.0,
        "finish_reason": "stop",
        "length": 3,
    }
    JsonLines(run / "samples.jsonl").append([row])
    JsonLines(run / "metrics.jsonl").append([{"step": 1, "reward": 0.5}])
    (run / "run.json").write_text('{"rewards": [{"name": "countdown"}]}')
    (run / "recipe.yaml").write_text("task: countdown\n")
    for step in (1, 2):
        checkpoint = run / f"checkpoint-{step}"
        checkpoint.mkdir()
        for name in ("grpo_state_0.pt", "model.safetensors"):
            (checkpoint / name).write_bytes(b"bytes")
        write_manifest(checkpoint)
    (folder / "data").mkdir()
    rows = [{"question": f"{n} + 1?", "answer": f"{n + 1}"} for n in range(30)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "data" / "train.jsonl").write_text(lines)
    private = folder / "private"
    for place in sorted({place for places in PLACES.values() for place in places}):
        path = private / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)


def spoil(folder: Path, kind: str, place: str) -> None:
    """Put something hostile in the place of a file, or into the model folder.

    Args:
        folder: a copy of the base.
        kind: of `FILE_KINDS`, `BUSY_KINDS` or `MODEL_KINDS`.
        place: relative to the folder. Kinds of models have their own places.
    """
    if kind in MODEL_KINDS:
        MODEL_KINDS[kind](folder / "model")
        return
    path = folder / place
    private = (folder / "private" / place).parent
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "growing":
        path.write_bytes(b'{"step": 1}\n')
        keep_busy(lambda: append(path))
    elif kind == "swapped":
        path.write_text(SECRET.replace("only", "all"))
        keep_busy(lambda: swap(path, private / path.name))
    else:
        FILE_KINDS[kind](path, private)


def keep_busy(action: Callable[[], None]) -> None:
    """Repeat an action in a thread until `be_still`."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(0.0002):
            with suppress(OSError):
                action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    BUSY.append((thread, ended))


def be_still() -> None:
    """End the threads of `keep_busy`."""
    while BUSY:
        thread, ended = BUSY.pop()
        ended.set()
        thread.join()


def append(path: Path) -> None:
    if path.stat().st_size < 2**26:
        with path.open("ab") as file:
            file.write(b'{"step": 1, "reward": 0.5, "text": "more"}\n' * 50)


def swap(path: Path, secret: Path) -> None:
    """Replace a file by a link to the reader's, and that by a file."""
    link = path.with_name(f".{path.name}.link")
    plain = path.with_name(f".{path.name}.plain")
    for other in (link, plain):
        other.unlink(missing_ok=True)
    link.symlink_to(secret)
    plain.write_text("{}\n")
    os.replace(link, path)
    os.replace(plain, path)


def report(folder: Path) -> None:
    from grpo_ext.cli.main import main

    main(["report", str(folder / "run"), "--output", str(folder / "page.html")])
    page = folder / "page.html"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    for block in text.split('<script type="text/plain"')[1:]:
        packed = block.partition(">")[2].partition("<")[0]
        assert SECRET.encode() not in gzip.decompress(base64.b64decode(packed))


def live_page(folder: Path) -> None:
    from grpo_ext.observe.report.serve import ReportServer

    with ReportServer([folder], 0) as server:
        answers = [server.answer("/runs", {})]
        for number in range(len(server.folders)):
            for path in ("about", "changes", "metrics", "samples", "texts"):
                with suppress(LookupError, ValueError, OSError):  # which the page gets as 404
                    query = {"start": 0, "step": 0, "stop": 10**9}
                    answers.append(server.answer(f"/{path}/{number}", query))
        assert SECRET not in repr(answers)


def resume(folder: Path) -> None:
    from grpo_ext.recipe.difference import differences
    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.trainer.manifest import newest_whole
    from grpo_ext.trainer.state import CheckpointMismatch, load_plain

    newest_whole(folder / "run")
    with suppress(CheckpointMismatch):
        load_plain(folder / "run" / "checkpoint-2" / "grpo_state_0.pt")
    recipe = load_recipe("countdown/tiny", {"output_dir": str(folder / "run")})
    assert SECRET not in str(differences(recipe, folder / "run"))


def command(*words: str) -> None:
    from grpo_ext.cli.main import main

    with suppress(SystemExit):
        main(list(words))


def evaluate(folder: Path) -> None:
    sizes = ["--max_eval_samples", "2", "--num_samples", "0", "--max_completion_length", "4"]
    model = str(folder / "model")
    command(
        "eval",
        "--config",
        "countdown/tiny",
        "--model",
        model,
        "--model_name_or_path",
        model,
        *sizes,
    )


def merge(folder: Path) -> None:
    path = folder / "adapter" / "adapter_config.json"
    if path.is_file() and not path.is_symlink() and path.stat().st_size < 2**16:
        with suppress(ValueError, OSError):
            config = json.loads(path.read_text())
            config["base_model_name_or_path"] = str(folder / "model")
            # it may be a link by now, to a private file
            with open(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW), "w") as file:
                file.write(json.dumps(config))
    command("merge", "--model", str(folder / "adapter"))


def init(folder: Path) -> None:
    data = next(
        (str(folder / place) for place in DATA if os.path.lexists(folder / place)),
        str(folder / "data"),
    )
    command("init", data, str(folder / "model"), "--output", str(folder / "mine"), "--yes")
    command(
        "init",
        str(folder / "data"),
        str(folder / "model"),
        "--output",
        str(folder / "its"),
        "--yes",
    )


def check(folder: Path) -> None:
    named = ["--model_name_or_path", str(folder / "model"), "--output_dir", str(folder / "run")]
    command("check", "--config", "countdown/tiny", *named)
    if os.path.lexists(folder / "recipe.yaml"):
        command("check", "--config", str(folder / "recipe.yaml"))
    data = [
        "--task",
        "prompts",
        "--dataset_name",
        str(folder / "data"),
        "--user_prompt",
        "{question}",
    ]
    command("check", "--config", "countdown/tiny", *named, *data)
    sampled = ["--sample", "1", "--max_completion_length", "4"]
    command("check", "--config", "countdown/tiny", *named, *sampled)


DOORS: dict[str, Callable[[Path], None]] = {
    "report": report,
    "live page": live_page,
    "resume": resume,
    "eval": evaluate,
    "merge": merge,
    "init": init,
    "check": check,
}


def enter(door: str, folder: Path, tricks: list[tuple[str, str]]) -> dict[str, Any]:
    """Read a folder by a door; return the seconds and the peak of memory of this process in MiB.

    Files of a model may be links to anywhere, so what they link to may be printed.

    Args:
        door: of `DOORS`.
        folder: a spoiled copy of the base.
        tricks: the kind and the place of each thing that is hostile in it.

    Raises:
        AssertionError: what was printed has the reader's secret or control characters, code of the
            folder has run, or a file of the reader has changed.
    """
    private = {
        path: path.read_bytes() for path in (folder / "private").rglob("*") if path.is_file()
    }
    begin = time.perf_counter()
    told = io.StringIO()
    try:
        with redirect_stdout(told), redirect_stderr(told):
            DOORS[door](folder)
    finally:
        be_still()
    seconds = time.perf_counter() - begin
    printed = told.getvalue()
    of_a_model = any(place.startswith(("model/", "adapter/")) for _, place in tricks)
    assert of_a_model or SECRET not in printed
    assert "\x1b[31m" not in printed
    assert "Traceback" not in printed, printed[-2000:]
    files = {
        name for _, _, names in os.walk(folder) for name in names
    }  # not those too deep for a path
    assert FLAG not in files, f"code of the folder has run: {door}"
    assert {path: path.read_bytes() for path in private} == private
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"door": door, "seconds": round(seconds, 1), "peak MiB": peak}
