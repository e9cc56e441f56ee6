"""A data set of good completions for supervised training.

Each line of the file is one completion with `step`, `prompt_id`, `prompt`, `completion` and `reward`; TRL's `SFTTrainer` reads
`prompt` and `completion`. Only the main process writes. `grpo_ext.observe.jsonl` makes the file survive crashes.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback

from grpo_ext.observe.jsonl import JsonLines, read

_ONE_FILE = 2.0**30  # MiB, so that the data set stays in one file


@dataclass(eq=False)
class Harvest(TrainerCallback):
    """Callback that writes good completions, each text of a prompt once. A run without a checkpoint renames an older file."""

    metric: str  # the reward that judges completions
    min_reward: float = 1.0  # least reward of a completion that is kept
    max_per_prompt: int = 4  # most completions of one prompt; the first are kept
    path: str | None = None  # path of the file; `None`: `harvest.jsonl` in the run's `output_dir`
    lines: JsonLines | None = field(default=None, init=False)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Rename the file of another run, or cut this run's file back to the step that it resumes from."""
        if not state.is_world_process_zero:
            return
        path = Path(self.path).expanduser() if self.path else Path(args.output_dir) / "harvest.jsonl"
        if state.global_step == 0 and path.exists():
            free = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(1))
            path.rename(next(name for name in free if not name.exists()))
        self.lines = JsonLines(path, _ONE_FILE)
        self.kept: Counter[str] = Counter()  # completions by prompt
        self.seen: set[tuple[str, str]] = set()  # prompt and text
        self.lines.cut(state.global_step)
        for row in read(path, {"prompt_id": str, "completion": object}):
            self._is_new(row["prompt_id"], json.dumps(row["completion"]))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.lines is not None:
            self.lines.sync()

    def wants(self, step: int, group: int) -> bool:
        """Return `True`: every group may have a good completion."""
        return True

    def on_samples(self, rows: list[dict[str, Any]]) -> None:
        """Write the good completions of a generation; the trainer calls this on the main process."""
        if self.lines is None:
            return
        found = []
        for row in rows:
            reward = row["rewards"].get(self.metric)
            if row["mode"] != "train" or reward is None or reward < self.min_reward:
                continue
            chat = not isinstance(row["prompt"], str)
            completion = [{"role": "assistant", "content": row["text"]}] if chat else row["text"]
            if self._is_new(row["prompt_id"], json.dumps(completion)):
                kept = {name: row[name] for name in ("step", "prompt_id", "prompt")}
                found.append({**kept, "completion": completion, "reward": reward})
        self.lines.append(found)

    def _is_new(self, prompt: str, completion: str) -> bool:
        """Whether to keep a completion; a later call knows it."""
        if self.kept[prompt] >= self.max_per_prompt or (prompt, completion) in self.seen:
            return False
        self.kept[prompt] += 1
        self.seen.add((prompt, completion))
        return True
