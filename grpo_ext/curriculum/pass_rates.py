"""Counts of how often each prompt is solved."""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from grpo_ext.common.foreign_files import lines_of, open_plain
from grpo_ext.observe.json_row import row_of
from grpo_ext.observe.jsonl import parts


def prompt_id(prompt: Any) -> str:
    """Return 12 hexadecimal digits that identify a prompt in every step and run."""
    return blake2b(
        json.dumps(prompt, ensure_ascii=True, sort_keys=True, default=str).encode(), digest_size=6
    ).hexdigest()


def read_pass_rates(
    path: Path, rewards: Sequence[str], threshold: float
) -> dict[str, tuple[int, int]]:
    """Return how many completions of each prompt are right, and how many were scored, by prompt id.

    A prompt is judged by the first of `rewards` that scored any of its completions; a prompt that
    none scored is left out.

    Args:
        path: the completions that `grpo-ext eval` writes, whose greedy ones are left out, or
            `samples.jsonl` of a run.
        rewards: the rewards that may judge a prompt, in the order of `outcome_order`.
        threshold: the least score of a right completion.

    Raises:
        ValueError: naming a line that is not a completion with the first of these rewards.
    """
    # by prompt and reward: how many completions are right, and how many were scored
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for part in parts(path):
        with open_plain(part) as file:
            for number, line in enumerate(lines_of(file, part), start=1):
                try:
                    row = row_of(line, {"prompt": object, "rewards": dict})
                    scores = {name: row["rewards"].get(name) for name in rewards[1:]}
                    scores[rewards[0]] = row["rewards"][rewards[0]]
                except (ValueError, KeyError, RecursionError) as error:
                    wrong = (
                        f"{part}:{number}: not a completion with the reward {rewards[0]} ({error})"
                    )
                    raise ValueError(
                        f"{wrong}. `grpo-ext eval --train_rows N --output FILE.json` writes them."
                    ) from None
                if row.get("part") == "greedy":
                    continue
                of_prompt = counts.setdefault(prompt_id(row["prompt"]), {})
                failed = row.get("failed")
                for name in failed if isinstance(failed, list) else ():
                    if (
                        isinstance(name, str) and name in scores
                    ):  # then no other reward judges this prompt in its place
                        of_prompt.setdefault(name, (0, 0))
                for name, score in scores.items():
                    if score is not None:
                        right, samples = of_prompt.get(name, (0, 0))
                        of_prompt[name] = right + (score >= threshold), samples + 1
    rates = {}
    for key, of_prompt in counts.items():
        judges = [name for name in rewards if name in of_prompt]
        if judges and of_prompt[judges[0]][1]:
            rates[key] = of_prompt[judges[0]]
    return rates


class PassRates:
    """The counts of each prompt of a data set whose rows have these ids; rows with the same prompt
    share their counts.

    The counts of a prompt are multiplied by `decay` before new ones are added, because the policy
    changes: 0 remembers only the last group, 1 everything. `start` has earlier counts: right and
    all, by prompt id.
    """

    def __init__(
        self,
        prompt_ids: Sequence[str],
        decay: float = 0.5,
        start: Mapping[str, tuple[float, float]] | None = None,
    ):
        self.decay = decay
        self.numbers = {key: number for number, key in enumerate(dict.fromkeys(prompt_ids))}
        self.of_row = np.array([self.numbers[key] for key in prompt_ids])  # (rows,)
        self.right = np.zeros(len(self.numbers))
        self.samples = np.zeros(len(self.numbers))
        for key, (right, samples) in (start or {}).items():
            self.observe(key, right, samples)

    def observe(self, key: str, right: float, samples: float) -> None:
        """Add the counts of a scored group; a prompt that is not in the data set is ignored."""
        number = self.numbers.get(key)
        if number is not None and samples:
            self.right[number] = self.decay * self.right[number] + right
            self.samples[number] = self.decay * self.samples[number] + samples

    def slots(self, num_generations: int, most: int) -> np.ndarray:
        """Return how many slots of `num_generations` completions a prompt takes, (rows,): the least
        number with which one right completion is expected, 1 / p completions, but at least 1 and at
        most `most`.

        p is the mean of Beta(right + 1, wrong + 1).
        """
        rate = (self.right + 1) / (self.samples + 2)
        # 1e-9: for the rounding of whole numbers
        wanted = np.ceil(1 / (rate * num_generations) - 1e-9)
        return np.clip(wanted, 1, most).astype(int)[self.of_row]

    def chance_of_signal(self, num_generations: int, most_slots: int = 1) -> np.ndarray:
        """Return the chances (rows,) of a mixed group: the mean of 1 - p^G - (1-p)^G over
        Beta(right + 1, wrong + 1).

        G is `num_generations` times the prompt's slots, of which it takes at most `most_slots`.
        """
        a = (self.right + 1)[self.of_row]
        b = (self.samples - self.right + 1)[self.of_row]
        size = num_generations * self.slots(num_generations, most_slots)  # (rows,)
        all_right = np.ones_like(a)
        all_wrong = np.ones_like(a)
        for i in range(size.max()):  # E[p^G] = product of (a + i) / (a + b + i)
            all_right *= np.where(i < size, (a + i) / (a + b + i), 1.0)
            all_wrong *= np.where(i < size, (b + i) / (a + b + i), 1.0)
        return np.clip(1 - all_right - all_wrong, 1e-12, None)

    def state_dict(self) -> dict[str, list[float]]:
        return {"right": self.right.tolist(), "samples": self.samples.tolist()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Restore counts; `ValueError` if their data set has another number of prompts."""
        if len(state["right"]) != len(self.numbers):
            raise ValueError(
                f"pass rates of {len(state['right'])} prompts do not fit a data set of "
                f"{len(self.numbers)}."
            )
        self.right = np.array(state["right"])
        self.samples = np.array(state["samples"])
