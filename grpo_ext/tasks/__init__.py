"""Tasks by name. A task defines the prompts of rows and the rewards of completions."""

from grpo_ext.common.modules import load_class
from grpo_ext.tasks.base import Task

# Import paths, so that a run loads only the packages of its own task.
MODULES = {
    "countdown": "grpo_ext.tasks.countdown:Countdown",
    "environment": "grpo_ext.tasks.environment_rows:EnvironmentRows",
    "gsm8k": "grpo_ext.tasks.gsm8k:GSM8K",
    "guess": "grpo_ext.tasks.guess:GuessTask",
    "instructions": "grpo_ext.tasks.instructions:Instructions",
    "poem": "grpo_ext.tasks.poem:Poem",
    "prompts": "grpo_ext.tasks.prompts:Prompts",
    "reasoning_gym": "grpo_ext.tasks.reasoning_gym:ReasoningGym",
}


def get_task_class(name: object) -> type[Task]:
    """Return the dataclass of a task.

    Args:
        name: the name of a built-in task, or a user's `pkg.module:Class` or `file.py:Class`.

    Raises:
        ValueError: if there is no such task, it cannot be imported, or it is not a subclass of
            `Task`.
    """
    cls = load_class("task", str(name), MODULES)
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ValueError(f"{name!r} is not a task: it must be a subclass of grpo_ext.tasks.Task.")
    return cls


def task_classes() -> dict[str, type[Task]]:
    """Return the built-in tasks by name."""
    return {name: get_task_class(name) for name in MODULES}


__all__ = ["Task", "get_task_class", "task_classes"]
