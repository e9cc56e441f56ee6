"""The progress bar of a run: the main figures of each log in the bar, evaluations as lines above
it.
"""

from typing import Any

from transformers import Trainer
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

SHORT = {
    "loss": "loss", "reward": "reward", "completions/mean_length": "length", "entropy": "entropy",
    "frac_reward_zero_std": "no signal", "kl": "kl", "mean_token_accuracy": "token accuracy",
}  # fmt: skip


class RunProgress(ProgressCallback):
    """A bar with the main figures of the last log."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if evaluation := evaluation_line(logs):
            self.training_bar.write(f"step {state.global_step}: {evaluation}")
        elif figures := main_figures(logs):
            self.training_bar.set_postfix_str(
                ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
            )


def main_figures(logs: dict[str, Any]) -> dict[str, float]:
    """Return the main figures of a training log: the mean of each reward, then those in `SHORT`."""
    figures = {
        key.split("/")[1]: logs[key]
        for key in logs
        if key.startswith("rewards/") and key.endswith("/mean")
    }
    figures |= {name: logs[key] for key, name in SHORT.items() if key in logs}
    return {name: value for name, value in figures.items() if isinstance(value, float | int)}


def evaluation_line(logs: dict[str, Any]) -> str:
    """Return the figures of an evaluation log with their standard errors; empty for any other
    log.
    """
    parts = []
    for key, value in logs.items():
        mean = key.startswith("eval_") and not key.endswith(
            ("_se", "_problems", "/problems", "_runtime", "_per_second")
        )
        if mean and isinstance(value, float | int):
            error = logs.get(f"{key}_se")
            parts.append(f"{key} {value:.3f}" + (f" ± {error:.3f}" if error is not None else ""))
    return ", ".join(parts)


class RunLines(TrainerCallback):
    """Prints the same figures as lines, for runs without a bar."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        figures = ", ".join(
            f"{name} {value:.3g}" for name, value in main_figures(logs or {}).items()
        )
        if state.is_local_process_zero and (line := evaluation_line(logs or {}) or figures):
            print(f"step {state.global_step}: {line}", flush=True)


def show_progress(trainer: Trainer) -> None:
    """Replace the callbacks that print every log in full by this bar or these lines; a notebook
    keeps its table.
    """
    for callback in [*trainer.callback_handler.callbacks]:
        if type(callback) in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(callback)
            trainer.add_callback(RunLines if trainer.args.disable_tqdm else RunProgress)
