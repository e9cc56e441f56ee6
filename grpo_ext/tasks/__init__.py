"""Look up tasks by name. A task supplies the rows, their prompts and the default rewards."""

from grpo_ext.common.modules import load_class
from grpo_ext.tasks.base import Task

# Import paths instead of classes, so that a run imports only the packages of its own task.
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
    """Import and return the dataclass of a task.

    Args:
        name: the name of a built-in task, or the location of a user's class, as `pkg.module:Class`
            or `file.py:Class`.

    Raises:
        ValueError: if there is no such task, it cannot be imported, or it is not a subclass of
            `Task`.
    """
    cls = load_class("task", str(name), MODULES)
    if not (isinstance(cls, type) and issubclass(cls, Task)):
        raise ValueError(f"{name!r} is not a task: it must be a subclass of grpo_ext.tasks.Task.")
    return cls


def task_classes() -> dict[str, type[Task]]:
    """Import the classes of all built-in tasks, and return them by name."""
    return {name: get_task_class(name) for name in MODULES}


__all__ = ["Task", "get_task_class", "task_classes"]
