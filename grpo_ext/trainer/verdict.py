"""Decide whether a run has learned anything and, if it has not, explain why.

The verdict goes into the last lines of the output and the model card, and decides the exit status.
"""

from dataclasses import dataclass

#: The KL drowns out the rewards in a step if they contribute less than this share of its gradient.
LEAST_SHARE = 0.01
#: Nothing was learned if the KL drowned out the rewards in at least this share of the steps, and
#: there were at least `ENOUGH_STEPS` of them.
MOST_STEPS = 0.9
ENOUGH_STEPS = 10
#: The precision of float32 (half its epsilon). Weights that changed by less, relative to their
#: size, count as unchanged.
ROUNDING = 2.0**-24


@dataclass
class Progress:
    """The counts of one rank since the first step of the run; saved in checkpoints."""

    steps: int = 0  # optimizer steps
    completions: int = 0  # completions generated to train on
    with_signal: int = 0  # of these, those in groups with an advantage
    with_advantage: int = 0  # of these, those with an advantage and at least one token in the loss
    gradient: bool = False  # whether a parameter had a nonzero gradient in some step
    moved: bool = False  # whether some step changed a weight
    episodes: int = 0  # episodes played to train on
    failed_episodes: int = 0  # of these, those in which the environment failed
    judged: int = 0  # completions judged, including those that `group_filter` left out
    unscored: int = 0  # of these, those that no reward scored
    varied: int = 0  # of these, those in groups within which some reward differs
    filtered: int = 0  # of these, those with signal that `group_filter` left out
    kl_steps: int = 0  # optimizer steps with a KL and with advantages
    kl_alone: int = 0  # of these, those in which the KL drowned out the rewards (`LEAST_SHARE`)
    shift: float | None = None  # change of the weights relative to their size; `None` if unknown

    def __add__(self, other: "Progress") -> "Progress":
        """Combine the progress of two ranks.

        Counts of completions and episodes are added up; counts of steps are not, because they are
        the same on all ranks. A flag (`gradient`, `moved`) is true if it is true on at least one
        rank. Of the two shifts, the larger is kept.
        """
        shifts = [shift for shift in (self.shift, other.shift) if shift is not None]
        return Progress(
            steps=max(self.steps, other.steps),
            completions=self.completions + other.completions,
            with_signal=self.with_signal + other.with_signal,
            with_advantage=self.with_advantage + other.with_advantage,
            gradient=self.gradient or other.gradient,
            moved=self.moved or other.moved,
            episodes=self.episodes + other.episodes,
            failed_episodes=self.failed_episodes + other.failed_episodes,
            judged=self.judged + other.judged,
            unscored=self.unscored + other.unscored,
            varied=self.varied + other.varied,
            filtered=self.filtered + other.filtered,
            kl_steps=max(self.kl_steps, other.kl_steps),
            kl_alone=max(self.kl_alone, other.kl_alone),
            shift=max(shifts, default=None),
        )


def why_nothing_was_learned(
    progress: Progress,
    watches_weights: bool = True,
    needs_advantage: bool = True,
    judge: str = "the outcome reward",
) -> str | None:
    """Return why a run learned nothing, and what to check; `None` if it learned or took no step.

    Args:
        progress: the progress of all ranks together.
        watches_weights: whether `gradient`, `moved` and `shift` were observed.
        needs_advantage: whether the loss has no gradient without advantages.
        judge: a phrase for the reward that judges groups, used in the explanation.
    """
    if progress.steps == 0:
        return None
    if needs_advantage and progress.completions and not progress.with_advantage:
        return f"Nothing was learned: {why_no_advantage(progress, judge)}"
    if watches_weights and not progress.gradient:
        return (
            "Nothing was learned: no step had a gradient. Check the loss, and which parameters "
            "have requires_grad."
        )
    if watches_weights and not progress.moved:
        return (
            "Nothing was learned: no step changed a weight. Either the learning rate was 0 in "
            "every step (a warm-up begins at 0), or the updates were too small for the precision "
            "of the weights. Raise learning_rate, max_steps or max_grad_norm, or set `dtype: "
            "float32`."
        )
    if watches_weights and progress.shift is not None and 0 < progress.shift < ROUNDING:
        return (
            f"Nothing was learned: all steps together changed the weights by {progress.shift:.1g} "
            "of their size, less than float32 can resolve. Raise learning_rate, max_steps or "
            "max_grad_norm."
        )
    if progress.kl_steps >= ENOUGH_STEPS and progress.kl_alone >= MOST_STEPS * progress.kl_steps:
        return f"Nothing was learned from the rewards: {kl_line(progress)}"
    return None


def why_no_advantage(progress: Progress, judge: str) -> str:
    """Return why no completion in the loss had an advantage, and what to change.

    `judge` is a phrase for the reward that judges groups, used in the explanation.
    """
    none_had = f"none of the {progress.completions} completions had an advantage"
    if progress.with_signal:
        return (
            f"in groups with different rewards ({progress.with_signal} completions), all "
            "completions with an advantage were left out of the loss, because they were truncated "
            "(mask_truncated_completions). Raise max_completion_length."
        )
    if progress.filtered:
        return (
            f"group_filter left out every group, because {judge} was the same for all completions "
            f"of a group, so {none_had}. Other rewards, or the turns that earned them, did differ "
            f"within some groups ({progress.filtered} completions in total). Use an easier task or "
            "a warm start, choose another reward with group_filter_metric, or set "
            "`group_filter: off` to train on all groups."
        )
    if progress.unscored and progress.unscored == progress.judged:
        return (
            f"no reward scored any of the {progress.judged} completions. Check what the rewards "
            "return, and which columns they read."
        )
    if progress.varied:
        return (
            f"the weighted sums of the rewards were equal within every group, so {none_had}. "
            "Individual rewards did differ within some groups "
            f"({progress.varied} completions in total). Check the weights in reward_funcs or "
            "reward_weights."
        )
    return (
        f"all rewards were equal within every group, so {none_had}. Look at the completions and "
        "rewards in the report. Use an easier task, a warm start, or a reward with more than two "
        "values."
    )


def kl_line(progress: Progress) -> str:
    """Return text that says in how many steps the KL drowned out the rewards, and what to change.

    It begins with a lowercase letter, so that it can follow a colon.
    """
    return (
        f"in {progress.kl_alone} of {progress.kl_steps} steps the KL to the reference made up more "
        f"than {1 - LEAST_SHARE:.0%} of the gradient, which keeps the policy at the reference. "
        "Lower beta; usual values are 0 to 0.1."
    )


def remarks_of(
    failed: dict[str, int], asked: dict[str, int], progress: Progress, verdict: str | None
) -> list[str]:
    """Return sentences about failures and the KL for the end of the run, excluding the verdict.

    The sentence about the KL is added if there is no verdict and the KL drowned out the rewards in
    at least half of the steps with a KL and with advantages.

    Args:
        failed: for each reward, the number of completions on which it failed.
        asked: for each reward, the number of completions that it was asked to score.
        progress: the progress of all ranks together.
        verdict: the result of `why_nothing_was_learned`.
    """
    lines = failure_lines(failed, asked, progress)
    if verdict is None and progress.kl_alone and 2 * progress.kl_alone >= progress.kl_steps:
        line = kl_line(progress)
        lines.append(line[:1].upper() + line[1:])
    return lines


def failure_lines(failed: dict[str, int], asked: dict[str, int], progress: Progress) -> list[str]:
    """Return a sentence for each reward that failed, and for the environment if it failed.

    Args:
        failed: for each reward, the number of completions on which it failed.
        asked: for each reward, the number of completions that it was asked to score.
        progress: the progress of all ranks together, with the counts of episodes.
    """
    lines = [
        f"Reward {name!r} failed on "
        f"{share_of(count, max(asked.get(name, 0), count), 'completions')}, which it did not score."
        for name, count in failed.items()
        if count
    ]
    if progress.failed_episodes:
        counts = share_of(progress.failed_episodes, progress.episodes, "episodes")
        lines.append(f"The environment failed in {counts}.")
    return lines


def share_of(count: int, total: int, noun: str) -> str:
    """Format a count, its total and its share, such as `3 of 12 episodes (25%)`.

    `total` must not be 0.
    """
    return f"{count} of {total} {noun} ({count / total:.0%})"
