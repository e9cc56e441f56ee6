"""The health monitor: check each log of a run and raise an alarm when the run goes wrong."""

import logging
from statistics import fmean
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import TrainerCallback

from grpo_ext.observe.health_rules import ACTIONS, REPETITION, Rule, Watch, repeats_itself
from grpo_ext.observe.run_log import RunLog

logger = logging.getLogger(__name__)

GROUPS_READ = 4  # groups of each generation that are checked for repetition


class HealthMonitor(TrainerCallback):
    """Writes alarms to the log of the process and to `metrics.jsonl`, and acts as their rules say.

    `warn` does nothing more, `checkpoint` saves one at the end of the step, `stop` saves one and
    ends the run. The main process judges; all act together.
    """

    def __init__(self, rules: list[Rule], log: RunLog):
        self.rules = rules
        self.log = log
        self.watch = Watch(rules)
        self.stopped_by: str | None = None  # the alarm that ended the run
        self._repeating: list[bool] = []  # for each completion since the last log

    def wants(self, step: int, group: int) -> bool:
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
        """Take the earlier logs of a resumed run, without raising their alarms again."""
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
        """Write the new alarms and return the one with the strongest action; `None` without any."""
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
    """Return what the model wrote in a completion, without the answers of an environment."""
    messages = row.get("messages", ())
    turns = [message["content"] for message in messages if message["role"] == "assistant"]
    if not turns:
        return row["text"]
    return "\n".join(turns)


def is_training_log(logs: dict[str, Any]) -> bool:
    """Whether a log is neither of an evaluation nor the summary at the end."""
    if not logs or "train_runtime" in logs:
        return False
    return not any(key.startswith("eval_") for key in logs)
