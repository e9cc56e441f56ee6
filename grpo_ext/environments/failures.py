"""Count the failures of an environment's code.

The first failure of each kind is logged with its file and line. Too many failures end the run.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from grpo_ext.environments.base import MissingColumn
from grpo_ext.rewards.scores import FailureCount, UserCodeFailure, clipped, is_of_user_code

logger = logging.getLogger(__name__)

# Methods of an environment, with the unit that each call handles. Other names, apart from `close`,
# are tools.
UNITS = {
    "reset": "episodes",
    "step": "turns",
    "state": "states",
    "cut_off": "turns",
    "tools": "episodes",
}
# What a failed method means for the episode, by `on_failure`; `cut_off` and `close` differ.
CONSEQUENCES = {
    "mask": "The episode ends, and is neither scored nor trained on.",
    "train": "If the model waits for an answer, it receives the error instead.",
    "retry": "If possible, the episode is played again from its seed; otherwise, it is neither "
    "scored nor trained on.",
    "cut_off": "The episode is neither scored nor trained on, unless `on_failure: train` is set.",
    "close": "The environment's resources may not have been released.",
}
# Advice if a method has other parameters, or returns something else.
DEFINITIONS = {
    "reset": "Define `reset(self, row)`, which returns text or None.",
    "step": "Define `step(self, text)`, which returns two values: the answer as text, and whether "
    "the episode is over.",
    "state": "Define `state(self)`, which returns a dict.",
}
NEVER_WORKED = 64  # warn about a tool that has been called this often and always raised an error


class EnvironmentFailure(UserCodeFailure):
    """Raised if an environment failed too often. The message ends with the last traceback."""


def advice_on(method: str, error: BaseException) -> str:
    """Return a sentence that says what to do about an error raised by an environment's method."""
    if isinstance(error, MissingColumn):
        return "Add the column to the rows, or read one that they have."
    if is_of_user_code(error):
        return "Correct it there."
    return DEFINITIONS.get(method, "Correct it.")


@dataclass(frozen=True)
class FailureReport:
    """A rank's report on the calls of one environment method or tool since the previous report."""

    subject: str  #: the environment, as it is named in messages
    method: str
    calls: int
    failed: int
    seeds: frozenset[str]  #: seeds of the episodes in which the method failed
    too_many: str | None  #: an error message if too many calls failed, else `None`
    may_end: bool  #: whether failures may end the run; `False` with `max_failure_rate: 1`
    last_error: str  #: the last failure, with its traceback; empty if there was none


class EnvironmentFailures:
    """Counts the failures of an environment's methods and tools, over all episodes of a process.

    An error that a tool raises is not a failure, because the model receives the error and may try
    again. Such errors are logged, but do not end a run.

    Args:
        name: name of the environment in messages.
        max_failure_rate: the share of a method's last 256 calls that may fail. The share is checked
            once there have been 64 calls.
        on_failure: what happens to an episode whose environment fails; used only in log messages.
    """

    def __init__(self, name: str, max_failure_rate: float, on_failure: str = "train"):
        self.on_failure = on_failure
        self.subject = f"The environment {name}".strip()
        self.max_failure_rate = max_failure_rate
        self.methods: dict[str, FailureCount] = {}
        self.advice: dict[str, str] = {}  # for each method, what to do about its last failure
        self.raised: Counter[str] = Counter()  # for each tool, the calls that raised an error
        self.last_raised: dict[str, str] = {}  # for each tool, the last of these errors
        self._seeds: defaultdict[str, set[str]] = defaultdict(set)
        self._reported: dict[str, tuple[int, int]] = {}  # calls and failures at the last report

    def succeeded(self, method: str) -> None:
        """Count a successful call of a method or tool."""
        self._count(method).add([False])

    def failed(
        self,
        method: str,
        error: str,
        arguments: object,
        seed: object,
        advice: str = "",
    ) -> None:
        """Count a failed call; log a warning for the first failure of each kind.

        Args:
            method: the name of the method that failed, or "tool NAME".
            error: the error, as formatted by `in_full`.
            arguments: the arguments of the call, for the log.
            seed: the seed of the episode.
            advice: a sentence that says what to do about the failure, from `advice_on`.
        """
        count = self._count(method)
        count.add([True])
        count.last_error = error
        self.advice[method] = advice
        self._seeds[method].add(str(seed))
        if count.is_new_kind(error):
            case = self.on_failure if method in UNITS else "train"
            if method in ("close", "cut_off"):
                case = method
            consequence = CONSEQUENCES[case]
            logger.warning(
                f"{count.name} failed. {consequence} Further failures of this kind are not logged; "
                "failures during an episode are counted in episodes/failures. The arguments of the "
                f"call: {clipped(arguments)}. The failure: {error}"
            )

    def tool_raised(self, tool: str, error: str, arguments: object) -> None:
        """Count an error that a tool raised, which is not a failure of the environment.

        The first error of each kind is logged. If all of the tool's first `NEVER_WORKED` calls
        raised an error, this is logged as well.

        Args:
            tool: the tool, as "tool NAME".
            error: the error, as formatted by `in_full`.
            arguments: the arguments of the call, for the log.
        """
        count = self._count(tool)
        count.add([False])
        self.last_raised[tool] = error
        self.raised[tool] += 1
        if count.is_new_kind(error):
            logger.warning(
                f"{self.subject}: the {tool} raised an error, which the model receives as the "
                "tool's result. Further errors of this kind are counted "
                "(tools/failure_frequency), but not logged. The arguments of the call: "
                f"{clipped(arguments)}. The error: {error}"
            )
        if self.raised[tool] == count.calls == NEVER_WORKED:
            logger.warning(
                f"{self.subject}: the {tool} has raised an error in each of its "
                f"{NEVER_WORKED} calls so far. Correct the tool, or describe its arguments better. "
                f"The last error: {error}"
            )

    def report(self) -> list[FailureReport]:
        """Return a report for each method and tool on its calls since the previous report."""
        reports = []
        for method, count in self.methods.items():
            calls_before, failed_before = self._reported.get(method, (0, 0))
            self._reported[method] = count.calls, count.failed
            report = FailureReport(
                self.subject,
                method,
                calls=count.calls - calls_before,
                failed=count.failed - failed_before,
                seeds=frozenset(self._seeds.pop(method, ())),
                too_many=count.too_many(),
                may_end=self.max_failure_rate < 1,
                last_error=count.last_error,
            )
            reports.append(report)
        return reports

    def _count(self, method: str) -> FailureCount:
        if method not in self.methods:
            self.methods[method] = FailureCount(
                f"{self.subject}: {method}",
                UNITS.get(method, "calls"),
                max_failure_rate=self.max_failure_rate,
            )
        return self.methods[method]


def refuse_many(reports: Iterable[FailureReport]) -> None:
    """Raise an error, which ends the run, if an environment failed too often.

    Environments with `max_failure_rate: 1` never end the run.

    Args:
        reports: the reports of all environments and ranks.

    Raises:
        EnvironmentFailure: if a report has `too_many`, or if a method in `UNITS` failed on every
            call in `reports`, in episodes with at least two different seeds.
    """
    by_method = defaultdict(list)
    for report in reports:
        if not report.may_end:
            continue
        if report.too_many:
            raise EnvironmentFailure(report.too_many)
        if report.method in UNITS:  # not tools: a generation may have only two calls of one
            by_method[report.subject, report.method].append(report)
    for (subject, method), of_method in by_method.items():
        failing = [report for report in of_method if report.failed]
        seeds: set[str] = set()
        for report in failing:
            seeds |= report.seeds
        if len(seeds) < 2:  # a single seed may come from a bad row of the data
            continue
        if all(report.failed == report.calls for report in of_method):
            raise EnvironmentFailure(
                f"{subject}: {method} failed on every call of this step or evaluation. Fix the "
                "method, test it with `grpo-ext check` or `grpo_ext.play`, and resume the run. To "
                "continue despite failures, set `max_failure_rate: 1` for the environment in the "
                "recipe. The last failure: "
                f"{failing[0].last_error}"
            )
