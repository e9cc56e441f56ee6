"""The health monitor: checks every log of a run and raises an alarm as soon as the run goes
wrong.
"""

import logging
from typing import Any

from accelerate.utils import broadcast_object_list
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
        own = [
            row for row in rows if row["mode"] == "train" and self.wants(row["step"], row["group"])
        ]
        self._repeating += [repeats_itself(words_of(row)) for row in own]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the earlier logs of a resumed run, without raising their alarms again."""
        self.watch = Watch(self.rules)
        self.stopped_by = None
        for entry in state.log_history:
            if is_training_log(entry):
                self.watch.add(entry)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if logs is None or not is_training_log(logs):
            return
        urgent: dict[str, Any] | None = None
        if state.is_world_process_zero:
            repeating = self._repeating
            self._repeating = []
            own = {REPETITION: sum(repeating) / len(repeating)} if repeating else {}
            alarms = self.watch.add({**logs, **own})
            for alarm in alarms:
                logger.warning("step %d: %s", state.global_step, alarm["message"])
                self.log.note(state.global_step, alarm)
            urgent = max(alarms, key=lambda alarm: ACTIONS.index(alarm["action"]), default=None)
        if any(rule.action != "warn" for rule in self.rules):
            urgent = broadcast_object_list([urgent])[0]
        action = urgent["action"] if urgent else "warn"
        control.should_save |= action in ("checkpoint", "stop")
        if urgent and action == "stop":
            control.should_training_stop = True
            self.stopped_by = urgent["message"]


def words_of(row: dict[str, Any]) -> str:
    """Return what the model wrote in a completion, without the answers of an environment."""
    turns = [
        message["content"] for message in row.get("messages", ()) if message["role"] == "assistant"
    ]
    return "\n".join(turns) if turns else row["text"]


def is_training_log(logs: dict[str, Any]) -> bool:
    """Whether a log is neither of an evaluation nor the summary at the end."""
    return (
        bool(logs)
        and "train_runtime" not in logs
        and not any(key.startswith("eval_") for key in logs)
    )
