"""Run a function on the main process and send its result or error to all ranks."""

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list


def from_main(accelerator: Accelerator | PartialState, ask: Callable[[], Any]) -> Any:
    """Run `ask()` on the main process and return its result, or raise its error, on all ranks.

    All ranks must call this function. The result or error must be picklable, because it is sent to
    the other ranks.
    """
    answer = None
    error = None
    if accelerator.is_main_process:
        try:
            answer = ask()
        except Exception as raised:
            error = raised
    answer, error = broadcast_object_list([answer, error])
    if error is not None:
        raise error
    return answer
