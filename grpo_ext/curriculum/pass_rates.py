"""Count how often each prompt is solved, and predict whether its next group has signal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_ext.common.foreign_files import lines_of, open_plain
from grpo_ext.common.hashes import prompt_id
from grpo_ext.observe.jsonl import parts, row_of

# For each reward, how many completions of a prompt are correct, and how many it scored.
PromptCounts = dict[str, tuple[int, int]]


def read_pass_rates(
    path: Path,
    rewards: Sequence[str],
    threshold: float,
) -> dict[str, tuple[int, int]]:
    """Count the correct and the scored completions of each prompt in a file of completions.

    A single reward is used for each prompt: the first of `rewards` that scored or failed on any of
    the prompt's completions.

    Args:
        path: the completions file from `grpo-ext eval`, or `samples.jsonl` of a run. Greedy
            completions are skipped. A missing file counts as empty.
        rewards: the names of the rewards to use, in order of preference (see `outcome_order`).
        threshold: the minimum score of a correct completion.

    Returns:
        For each prompt id, the number of correct and the number of scored completions. Prompts
        without a scored completion are left out.

    Raises:
        ValueError: if a line is not a completion with the first of `rewards`. The message names the
            line.
        OSError: if a file exists but cannot be opened, or if a line is too long.
    """
    counts: dict[str, PromptCounts] = {}  # by prompt id
    for part in parts(path):
        with open_plain(part) as file:
            for number, line in enumerate(lines_of(file, part), start=1):
                try:
                    row = row_of(line, {"prompt": object, "rewards": dict})
                    if rewards[0] not in row["rewards"]:
                        raise ValueError(f"its rewards lack {rewards[0]!r}")
                except (ValueError, RecursionError) as error:
                    raise ValueError(
                        f"{part}:{number}: the line is not a completion with the reward "
                        f"{rewards[0]} ({error}). Create the file with `grpo-ext eval --train_rows "
                        "N --output FILE.json`, which writes FILE_completions.jsonl."
                    ) from None
                if row.get("part") == "greedy":
                    continue
                key = prompt_id(row["prompt"])
                prompt_counts = counts.setdefault(key, {})
                _count_completion(prompt_counts, row, rewards, threshold)
    rates = {}
    for key, prompt_counts in counts.items():
        judges = [name for name in rewards if name in prompt_counts]
        if not judges:
            continue
        right, scored = prompt_counts[judges[0]]
        if scored > 0:
            rates[key] = (right, scored)
    return rates


def _count_completion(
    counts: PromptCounts,
    row: dict[str, Any],
    rewards: Sequence[str],
    threshold: float,
) -> None:
    failed = row.get("failed")
    for name in rewards:
        # A reward that failed still judges the prompt, so that no other reward replaces it.
        if isinstance(failed, list) and name in failed:
            counts.setdefault(name, (0, 0))
        score = row["rewards"].get(name)
        if score is None:
            continue
        right, scored = counts.get(name, (0, 0))
        if score >= threshold:
            right += 1
        counts[name] = (right, scored + 1)


class PassRates:
    """Counts of the correct and the scored completions of each prompt; rows may share a prompt.

    Args:
        prompt_ids: the prompt id of each row.
        decay: the factor applied to the counts of a prompt before new ones are added, because the
            policy changes: 0 remembers only the last group, 1 remembers everything.
        start: counts to begin with, as (correct, scored) by prompt id; ids of prompts that no row
            has are ignored.
    """

    def __init__(
        self,
        prompt_ids: Sequence[str],
        decay: float = 0.5,
        start: Mapping[str, tuple[float, float]] | None = None,
    ):
        self.decay = decay
        self.numbers: dict[str, int] = {}  # the index of each distinct prompt
        for key in prompt_ids:
            self.numbers.setdefault(key, len(self.numbers))
        self.of_row = np.array([self.numbers[key] for key in prompt_ids])  # (rows,)
        num_prompts = len(self.numbers)
        self.right = np.zeros(num_prompts)
        self.samples = np.zeros(num_prompts)
        for key, (right, samples) in (start or {}).items():
            self.observe(key, right, samples)

    def observe(self, key: str, right: float, samples: float) -> None:
        """Decay the counts of a prompt, and add the counts of a group.

        Nothing changes if the group was not scored, or if the prompt is not in the dataset.

        Args:
            key: the id of the prompt.
            right: the number of correct completions.
            samples: the number of scored completions.
        """
        number = self.numbers.get(key)
        if number is None or not samples:
            return
        self.right[number] *= self.decay
        self.right[number] += right
        self.samples[number] *= self.decay
        self.samples[number] += samples

    def slots(self, num_generations: int, most: int) -> np.ndarray:
        """Return how many slots of `num_generations` completions each row gets, (rows,).

        This is the smallest number of slots in which at least one correct completion is expected,
        but no more than `most`. The expected pass rate is the mean of Beta(right + 1, wrong + 1).
        """
        rates = (self.right + 1) / (self.samples + 2)  # (prompts,)
        expected_right = rates * num_generations  # (prompts,), in one slot
        # 1e-9 keeps rounding errors from raising a whole number to the next one.
        slots = np.ceil(1 / expected_right - 1e-9)  # (prompts,)
        slots = np.clip(slots, 1, most).astype(int)
        return slots[self.of_row]

    def chance_of_signal(self, num_generations: int, most_slots: int = 1) -> np.ndarray:
        """Return, for each row, the probability that its group has correct and wrong completions.

        The result, (rows,), is the mean of 1 - p^G - (1-p)^G over Beta(right + 1, wrong + 1), or
        1e-12 if the mean is smaller. The group size G is `num_generations` times the number of
        slots (at most `most_slots`).
        """
        alpha = (self.right + 1)[self.of_row]  # (rows,)
        beta = (self.samples - self.right + 1)[self.of_row]  # (rows,)
        slots = self.slots(num_generations, most_slots)  # (rows,)
        group_sizes = num_generations * slots
        all_right = np.ones_like(alpha)  # (rows,), E[p^G]
        all_wrong = np.ones_like(alpha)  # (rows,), E[(1-p)^G]
        for i in range(group_sizes.max()):  # E[p^G] = product of (alpha + i) / (alpha + beta + i)
            in_group = i < group_sizes
            total = alpha + beta + i
            right_factor = (alpha + i) / total
            wrong_factor = (beta + i) / total
            all_right *= np.where(in_group, right_factor, 1.0)
            all_wrong *= np.where(in_group, wrong_factor, 1.0)
        chances = 1 - all_right - all_wrong
        return np.clip(chances, 1e-12, None)

    def state_dict(self) -> dict[str, list[float]]:
        return {
            "right": self.right.tolist(),
            "samples": self.samples.tolist(),
        }

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Restore the counts from a `state_dict`.

        Raises:
            ValueError: if the counts are from a dataset with a different number of prompts.
        """
        if len(state["right"]) != len(self.numbers):
            raise ValueError(
                f"the checkpoint has pass rates for {len(state['right'])} prompts, but the dataset "
                f"has {len(self.numbers)}. Resume with the dataset that the checkpoint was trained "
                "on, or start a new run with another output_dir."
            )
        self.right = np.array(state["right"])
        self.samples = np.array(state["samples"])
