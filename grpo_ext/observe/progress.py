"""Show the latest metrics of a run in its progress bar, or print them if there is no bar."""

from typing import Any

from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from grpo_ext.common.estimates import with_error

SHORT = {
    "loss": "loss",
    "reward": "reward",
    "completions/mean_length": "length",
    "entropy": "entropy",
    "frac_reward_zero_std": "no signal",
    "kl": "kl",
    "mean_token_accuracy": "token accuracy",
}

# Endings of evaluation metrics that are not means.
NOT_MEANS = ("_se", "_problems", "/problems", "_runtime", "_per_second")


class RunProgress(ProgressCallback):
    """Trainer callback that shows the main metrics of the last training log in a progress bar.

    It also prints a line above the bar for each evaluation. It is used instead of transformers'
    `ProgressCallback`.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        evaluation = evaluation_line(logs)
        figures = figures_line(logs)
        if evaluation:
            self.training_bar.write(f"step {state.global_step}: {evaluation}")
        elif figures:
            self.training_bar.set_postfix_str(figures)


def main_figures(logs: dict[str, Any]) -> dict[str, float]:
    """Return the main metrics of a log by short name: each reward's mean, then those in `SHORT`.

    Metrics that are missing from the log, or are not numbers, are left out.
    """
    names = {}
    for key in logs:
        if key.startswith("rewards/") and key.endswith("/mean"):
            names[key] = key.split("/")[1]
    figures = {}
    for key, name in (names | SHORT).items():
        if isinstance(logs.get(key), float | int):
            figures[name] = logs[key]
    return figures


def figures_line(logs: dict[str, Any]) -> str:
    """Format the main metrics of a training log as one line; return `""` if it has none."""
    figures = main_figures(logs)
    return ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())


def evaluation_line(logs: dict[str, Any]) -> str:
    """Format the means in an evaluation log as one line, with their standard errors if logged.

    Returns `""` for other logs.
    """
    means = []
    for key, mean in logs.items():
        if not key.startswith("eval_") or key.endswith(NOT_MEANS):
            continue
        if isinstance(mean, float | int):
            figure = with_error(mean, logs.get(f"{key}_se"))
            means.append(f"{key} {figure}")
    return ", ".join(means)


class RunLines(TrainerCallback):
    """Trainer callback that prints a line for each log, for runs without a progress bar.

    The line has the means of an evaluation or the main metrics of a training log, and is printed by
    the first process of each machine. A log that has neither is ignored.
    """

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_local_process_zero or not logs:
            return
        line = evaluation_line(logs) or figures_line(logs)
        if line:
            print(f"step {state.global_step}: {line}", flush=True)


def show_progress(trainer: Trainer) -> None:
    """Replace the callbacks that transformers uses to print logs or show a progress bar.

    They are replaced with `RunProgress`, or with `RunLines` if `disable_tqdm` is set. In a
    notebook, transformers still shows its table of metrics.
    """
    for callback in [*trainer.callback_handler.callbacks]:
        if type(callback) in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
            trainer.add_callback(RunLines if trainer.args.disable_tqdm else RunProgress)
