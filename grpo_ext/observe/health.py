"""Check each log of a run with the health rules, and raise an alarm when the run goes wrong."""

import logging
import zlib
from statistics import fmean
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from grpo_ext.observe.health_rules import ACTIONS, REPETITION, Rule, Watch
from grpo_ext.observe.run_log import RunLog

logger = logging.getLogger(__name__)
GROUPS_READ = 4  # number of groups of each generation that are checked for repetition


def repeats_itself(text: str) -> bool:
    """Return whether the first 4,000 bytes of `text` compress to less than a tenth of their size.

    Text of fewer than 200 bytes never counts as repetitive.
    """
    start = text.encode("utf-8", "replace")[:4000]
    if len(start) < 200:
        return False
    compressed = zlib.compress(start, 1)
    return len(compressed) < len(start) / 10


class HealthMonitor(TrainerCallback):
    """Trainer callback that applies the health rules to each training log and acts on alarms.

    Every alarm is written to the process log and to `metrics.jsonl`. The action `checkpoint` also
    saves a checkpoint at the end of the step, and `stop` saves a checkpoint and ends the run. The
    main process applies the rules, and all processes take the same action.
    """

    def __init__(self, rules: list[Rule], log: RunLog):
        self.rules = rules
        self.log = log
        self.watch = Watch(rules)
        self.stopped_by: str | None = None  # the message of the alarm that ended the run
        self._repeating: list[bool] = []  # one entry for each completion since the last log

    def wants(self, step: int, group: int) -> bool:
        """Return whether a group's completions are checked for repetition; `step` is ignored."""
        return group < GROUPS_READ

    def on_samples(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            is_wanted = self.wants(row["step"], row["group"])
            if row["mode"] == "train" and is_wanted:
                text = written_text(row)
                self._repeating.append(repeats_itself(text))

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Reset the monitor and, in a resumed run, replay earlier logs without repeating alarms."""
        self.watch = Watch(self.rules)
        self.stopped_by = None
        for entry in state.log_history:
            if is_training_log(entry):
                self.watch.add(entry)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or not is_training_log(logs):
            return
        urgent: dict[str, Any] | None = None
        if state.is_world_process_zero:
            urgent = self._raise_alarms(state.global_step, logs)
        if any(rule.action != "warn" for rule in self.rules):
            urgent = broadcast_object_list([urgent])[0]
        if urgent is None:
            return
        if urgent["action"] in ("checkpoint", "stop"):
            control.should_save = True
        if urgent["action"] == "stop":
            control.should_training_stop = True
            self.stopped_by = urgent["message"]

    def _raise_alarms(self, step: int, logs: dict[str, Any]) -> dict[str, Any] | None:
        """Log new alarms and return the one with the strongest action; `None` if there is none."""
        figures = dict(logs)
        if self._repeating:
            figures[REPETITION] = fmean(self._repeating)
            self._repeating = []
        alarms = self.watch.add(figures)
        for alarm in alarms:
            logger.warning("step %d: %s", step, alarm["message"])
            self.log.note(step, alarm)
        return max(alarms, key=lambda alarm: ACTIONS.index(alarm["action"]), default=None)


def written_text(row: dict[str, Any]) -> str:
    """Return the text that the model wrote in a completion, without an environment's replies."""
    messages = row.get("messages", ())
    turns = [message["content"] for message in messages if message["role"] == "assistant"]
    if not turns:
        return row["text"]
    return "\n".join(turns)


def is_training_log(logs: dict[str, Any]) -> bool:
    """Return whether a log is a training log.

    Empty logs, evaluation logs, and the summary at the end of a run (with `train_runtime`) are not.
    """
    if not logs or "train_runtime" in logs:
        return False
    return not any(key.startswith("eval_") for key in logs)
