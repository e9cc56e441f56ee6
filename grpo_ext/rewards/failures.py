"""Count the failures of user code: of a reward, or of a method of an environment."""

from collections import deque
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass


class UserCodeFailure(RuntimeError):
    """A reward or environment failed too often. The message ends with one of the failures."""


@dataclass
class FailureCount:
    """Counts the failures of one function, over all calls and over the most recent ones.

    Args:
        name: the subject of messages, such as "Reward 'format'".
        unit: the plural noun for what is counted, such as "rows".
        max_failure_rate: the share of failures in the window above which there are too many.
        window: the number of most recent calls to judge. Nothing is judged until a quarter of the
            window is filled.
    """

    name: str
    unit: str
    _: KW_ONLY
    max_failure_rate: float = 0.5
    window: int = 256

    def __post_init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.last_error = ""  # the last failure, with its traceback if there is one
        self._recent: deque[bool] = deque(maxlen=self.window)
        self._kinds: set[str] = set()

    def add(self, failures: Iterable[bool]) -> None:
        """Count calls; `failures` says for each one whether it failed."""
        outcomes = list(failures)
        self.calls += len(outcomes)
        self.failed += sum(outcomes)
        self._recent.extend(outcomes)

    def is_new_kind(self, error: str) -> bool:
        """Return whether this is the first error of its type; `error` is a text from `in_full`."""
        last_line = error.rpartition("\n")[2]
        kind = last_line.partition(":")[0]
        is_new = kind not in self._kinds
        self._kinds.add(kind)
        return is_new

    def too_many(self) -> str | None:
        """Return why the run must stop, or `None` while the failure rate is acceptable."""
        calls = len(self._recent)
        failed = sum(self._recent)
        if calls < max(1, self.window / 4) or failed / calls <= self.max_failure_rate:
            return None
        return (
            f"{self.name} failed on {failed} of the last {calls} {self.unit}, more than the share "
            f"of {self.max_failure_rate:g} that is allowed. The last failure: {self.last_error}"
        )
