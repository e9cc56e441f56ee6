"""Stop a run on a signal: record it on arrival, and act on all ranks after the step."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator

from grpo_ext.run.ranks import EXIT_INTERRUPTED, report_ready

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
logger = logging.getLogger(__name__)


class Interrupted(SystemExit):
    """A signal has stopped the run at the end of a step, after saving a checkpoint.

    As a `SystemExit`, it ends a script with exit code 75 unless it is caught.
    """

    code = EXIT_INTERRUPTED


class StopSignals:
    """Handles SIGTERM, SIGUSR1 and Ctrl-C; a second Ctrl-C ends the process at once.

    It leaves handlers that the program installed in place, and does nothing outside the main
    thread.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self.seen = 0
        if threading.current_thread() is threading.main_thread():
            usual = (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
            self._before = {
                s: signal.signal(s, self._note) for s in SIGNALS if signal.getsignal(s) in usual
            }
            report_ready()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.seen == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self.seen = number
        again = " A second Ctrl-C ends it at once." if number == signal.SIGINT else ""
        logger.warning(
            "%s: the run stops with a checkpoint at the end of this step.%s",
            signal.Signals(number).name,
            again,
        )

    def agreed(self, accelerator: Accelerator) -> int:
        """Return the signal that any rank has received, or 0; the same on every rank.

        All ranks must call it together.
        """
        return int(accelerator.gather(torch.tensor([self.seen], device=accelerator.device)).max())
