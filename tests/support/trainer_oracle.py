"""The gradient of an optimizer step from first principles: one completion at a time, token by
token.

It computes in the number type of its model. It reads what a run has recorded (see `scripted_run`)
and imports nothing of the package: rewards become advantages, groups are filtered, and each
completion is scored by a model with the weights of the step that counts, without padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

CLOSE = 1e-4  # relative distance from a threshold below which float32 may fall on the other side
ROUNDING = Fraction(1, 10**12)  # of a sum of rewards, relative
DEFAULTS: dict[str, Any] = {
    "advantage_normalizer": "all",
    "behaviour_policy": "decoupled",
    "beta": 0.0,
    "delta": None,
    "dppo_delta": 0.15,
    "entropy_coef": 0.0,
    "entropy_coef_delta": 0.005,
    "entropy_coef_max": 1.0,
    "entropy_coef_min": 0.0,
    "entropy_target": 0.2,
    "epsilon": 0.2,
    "epsilon_high": None,
    "generation_kwargs": None,
    "group_filter": "off",
    "group_filter_metric": None,
    "importance_sampling_level": "token",
    "kl_estimator": "k3",
    "logprob_policy": "sampling",
    "loss_type": "dapo",
    "mask_truncated_completions": False,
    "max_slots_per_prompt": 1,
    "max_staleness": 1,
    "min_p": None,
    "multi_objective_aggregation": "sum_then_normalize",
    "off_policy_mask_threshold": None,
    "pass_threshold": 1.0,
    "positive_nll_coef": 0.0,
    "reward_weights": None,
    "sapo_temperature_neg": 1.05,
    "sapo_temperature_pos": 1.0,
    "scale_rewards": "group",
    "std_estimator": "sample",
    "temperature": 1.0,
    "tie_break_coef": 0.1,
    "tie_break_reward": None,
    "top_entropy_quantile": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "use_adaptive_entropy": False,
    "use_bias_correction_kl": True,
    "vespo_k_neg": 3.0,
    "vespo_k_pos": 2.0,
    "vespo_lambda_neg": 2.0,
    "vespo_lambda_pos": 3.0,
    "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "token_truncate",
}


def check_order(record: dict[str, Any]) -> None:
    """Assert that `curriculum: easy_to_hard` has given each generation the prompts of its turn.

    The rows, sorted by difficulty, are passed once in the generations of a run: the first one has
    the easiest rows, the last one the hardest, and those between have neighboring rows at even
    distances. Which of equally hard rows come first is open. With `refill`, only the first round of
    the run is known, and with `partial_rollouts` none.
    """
    settings = {**DEFAULTS, **record["settings"]}
    if settings.get("curriculum") != "easy_to_hard" or settings.get("partial_rollouts"):
        return
    difficulties = record["difficulties"]
    easy_first = sorted(difficulties)
    prompts = record["groups"]
    size = record["num_generations"]
    generations = record["generations"]
    known = generations[:1] if settings["group_filter"] == "refill" else generations
    for number, generation in enumerate(known):
        came = sorted(difficulties[row["number"]] for row in generation["calls"][0])
        exact = Fraction(number * (len(easy_first) - prompts), max(1, len(generations) - 1))
        starts = {math.floor(exact + Fraction(1, 2)), math.ceil(exact - Fraction(1, 2))}
        windows = [easy_first[start : start + prompts] for start in starts]
        expected = [[hard for hard in window for _ in range(size)] for window in windows]
        assert came in expected, f"generation {number}: difficulties {came}, not {expected}"


class Undecided(Exception):
    """A figure is so close to a threshold that rounding decides."""


@dataclass(frozen=True)
class Completion:
    """A completion of a generation, as it was recorded and judged."""

    prompt: list[int]
    ids: list[int]
    wrote: list[int]  # for each token 1 if the policy wrote it, 0 if an environment did
    kept: list[list[bool]] | None  # of each position the tokens that the sampler kept
    sampled: list[float] | None  # the sampler's log-prob of each token, NaN where it has none
    arrived: int  # the optimizer step at which the trainer got it
    sampled_at: int  # the optimizer step whose weights sampled its first token
    left_out: bool = False  # truncated and masked, or of a group that is left out
    rewards: tuple[Fraction | None, ...] = ()  # one per function; `None`: not scored
    right: bool = False  # it passes by the reward that judges its group
    signal: bool = True  # the rewards of its group differ
    advantages: tuple[float, ...] = ()  # one per token

    @property
    def counts(self) -> list[int]:
        """Return the positions of the tokens in the loss."""
        return [] if self.left_out else [t for t, mine in enumerate(self.wrote) if mine]


@dataclass
class Group:
    """The completions of one prompt."""

    completions: list[Completion]
    alive: bool = True  # by the reward that judges groups, or the one that breaks ties
    all_pass: bool = False  # every completion, by the reward that judges groups
    gains: list[list[float]] = field(default_factory=list)  # of each turn, with credit by turn


# ---- rewards


def filled(rewards: list[list[Fraction | None]]) -> list[list[Fraction] | None]:
    """Return the rewards (G, R) of a group with each missing one replaced by the group's mean of
    that function.

    A function that scored none of the group counts as 0. A completion that no function scored is
    `None`.
    """
    means = []
    for scores in zip(*rewards, strict=True):
        present = [score for score in scores if score is not None]
        means.append(sum(present, Fraction(0)) / len(present) if present else Fraction(0))
    whole: list[list[Fraction] | None] = []
    for row in rewards:
        if all(score is None for score in row):
            whole.append(None)
        else:
            pairs = zip(row, means, strict=True)
            whole.append([mean if score is None else score for score, mean in pairs])
    return whole


def weighted(rows: list[list[Fraction] | None], weights: Sequence[float]) -> list[Fraction | None]:
    """Return the weighted sum of each row, `None` for a row that was not scored."""
    exact = list(map(Fraction, weights))
    return [
        None if row is None else sum((w * r for w, r in zip(exact, row, strict=True)), Fraction(0))
        for row in rows
    ]


def differ(scores: Sequence[Fraction | None]) -> bool:
    """Return whether the scores that there are differ, by more than sums of them round."""
    present = [score for score in scores if score is not None]
    if not present:
        return False
    return max(present) - min(present) > ROUNDING * max(1, *map(abs, present))


def exp(x: float) -> float:
    """Return e^x; infinity where that overflows, as torch does."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def on_paper(score: Fraction | None) -> Fraction | None:
    """Return the decimal that a score stands for: 100.2, not the float that is nearest to it."""
    return None if score is None else score.limit_denominator(10**6)


def deviation(scores: Sequence[float] | Sequence[Fraction], estimator: str) -> float:
    """Return the standard deviation; NaN if it is not defined."""
    count = len(scores) - (1 if estimator == "sample" else 0)
    if count <= 0:
        return math.nan
    mean = sum(scores) / len(scores)
    return math.sqrt(sum((score - mean) ** 2 for score in scores) / count)


def compared(
    scores: Sequence[Fraction | None], scale: str, estimator: str, together: Sequence[Fraction]
) -> list[float]:
    """Return the advantages of a group; `together` are the scores of the whole generation."""
    present = [score for score in scores if score is not None]
    if not differ(scores):
        return [0.0] * len(scores)
    mean = sum(present, Fraction(0)) / len(present)
    if scale == "group":
        divisor = deviation([float(score) for score in present], estimator) + 1e-4
    elif scale == "batch":
        divisor = deviation([float(score) for score in together], estimator) + 1e-4
    else:
        assert scale == "none", f"the oracle has no formula for scale_rewards: {scale}"
        divisor = 1.0
    return [0.0 if score is None else float(score - mean) / divisor for score in scores]


class Judging:
    """Rewards to advantages, and which groups are used, by the settings of a run."""

    def __init__(self, settings: dict[str, Any], names: Sequence[str], size: int):
        self.s, self.names, self.size = settings, list(names), size
        self.weights = settings["reward_weights"] or [1.0] * len(names)
        metric = settings["group_filter_metric"]
        first = self.names.index(metric) if metric else self.weights.index(max(self.weights))
        others = [i for i, weight in enumerate(self.weights) if i != first and weight]
        #: the rewards that may judge a group; the first that scored it does
        self.outcomes = [first, *sorted(others, key=lambda i: -self.weights[i])]
        self.carried: list[Group] = []

    def sums(self, group: Group) -> list[Fraction | None]:
        """Return the weighted sums of a group's completions."""
        return weighted(filled([list(c.rewards) for c in group.completions]), self.weights)

    def judge(self, groups: list[Group]) -> None:
        """Set signal, advantages and `alive` of the groups of one generation."""
        least = Fraction(self.s["pass_threshold"])
        for group in groups:
            group.alive = False
            for outcome in self.outcomes:
                scores = [c.rewards[outcome] for c in group.completions]
                if any(score is not None for score in scores):
                    group.alive = differ(scores)
                    passes = [s is not None and s >= least for s in scores]
                    group.all_pass = all(passes)
                    group.completions = [
                        replace(c, right=right)
                        for c, right in zip(group.completions, passes, strict=True)
                    ]
                    break
            group.alive = group.alive or self.breaks_tie(group)
        self.set_advantages(groups)

    def tie_scores(self, group: Group) -> list[Fraction | None]:
        """Return the scores of the reward that breaks ties."""
        index = self.names.index(self.s["tie_break_reward"])
        rows = filled([list(c.rewards) for c in group.completions])
        return [None if row is None else row[index] for row in rows]

    def breaks_tie(self, group: Group) -> bool:
        """Return whether the reward that breaks ties decides a group of right completions."""
        if self.s["tie_break_reward"] is None or not group.all_pass or differ(self.sums(group)):
            return False
        return differ(self.tie_scores(group))

    def set_advantages(self, groups: list[Group]) -> None:
        """Set the advantages of groups that are used together."""
        sums = [self.sums(group) for group in groups]
        together = [score for scores in sums for score in scores if score is not None]
        if self.s["multi_objective_aggregation"] == "normalize_then_sum":
            advantages = self.normalized_first(groups)
        else:
            how = self.s["scale_rewards"], self.s["std_estimator"], together
            advantages = [compared(scores, *how) for scores in sums]
        for group, scores, of_rows in zip(groups, sums, advantages, strict=True):
            signal = differ(scores)
            if self.breaks_tie(group):
                how = self.s["scale_rewards"], self.s["std_estimator"], ()
                of_tie = compared(self.tie_scores(group), *how)
                of_rows = [self.s["tie_break_coef"] * advantage for advantage in of_tie]
                signal = True
            rows = [
                replace(c, signal=signal, advantages=(a,) * len(c.ids))
                for c, a in zip(group.completions, of_rows, strict=True)
            ]
            if group.gains:
                by_turn = self.of_turns(scores, group.gains)
                signal = any(advantage != 0 for of_turns in by_turn for advantage in of_turns)
                rows = [
                    replace(c, signal=signal, advantages=spread(c, a))
                    for c, a in zip(rows, by_turn, strict=True)
                ]
            group.completions = rows

    def normalized_first(self, groups: list[Group]) -> list[list[float]]:
        """GDPO (arXiv 2601.05242): each reward normalized in its group, then their weighted sum
        over the batch.
        """
        totals: list[float | None] = []
        for group in groups:
            rows = filled([list(map(on_paper, c.rewards)) for c in group.completions])
            present = [row for row in rows if row is not None]
            scaled: list[list[float]] = []
            for scores in zip(*present, strict=True):
                mean = sum(scores, Fraction(0)) / len(scores)
                divisor = deviation(scores, "sample") + 1e-4
                scaled.append(
                    [float(score - mean) / divisor if differ(scores) else 0.0 for score in scores]
                )
            of_rows = iter(zip(*scaled, strict=True))
            for row in rows:
                parts = zip(self.weights, next(of_rows), strict=True) if row is not None else None
                totals.append(None if parts is None else sum(w * x for w, x in parts))
        there = [total for total in totals if total is not None]
        mean = sum(there) / max(len(there), 1)
        divisor = deviation(there, "sample") + 1e-4
        flat = [0.0 if total is None else (total - mean) / divisor for total in totals]
        flat = [0.0 if math.isnan(advantage) else advantage for advantage in flat]
        rest = iter(flat)
        return [[next(rest) for _ in group.completions] for group in groups]

    def of_turns(self, sums: list[Fraction | None], gains: list[list[float]]) -> list[list[float]]:
        """Return the advantages of turns: rewards to go, compared with the same turn of the group's
        other episodes.

        `gains` are those of the environment's reward, before its weight.
        """
        weight = Fraction(self.weights[self.names.index("environment")])
        to_go: list[list[Fraction | None]] = []
        for total, of_turns in zip(sums, gains, strict=True):
            earned = Fraction(0)
            row: list[Fraction | None] = []
            for gain in of_turns:
                row.append(None if total is None else total - earned)
                earned += weight * Fraction(gain)
            to_go.append(row)
        found: list[list[float]] = [[] for _ in to_go]
        for k in range(max(map(len, to_go))):
            there = [i for i, row in enumerate(to_go) if len(row) > k]
            scale = self.s["scale_rewards"], self.s["std_estimator"], ()
            of_turn = compared([to_go[i][k] for i in there], *scale)
            for i, advantage in zip(there, of_turn, strict=True):
                found[i].append(advantage)
        return found

    def used(self, groups: list[Group], step: int, wanted: int) -> list[Group]:
        """Return the groups of a generation that are trained on; those that are left out stay,
        without tokens.

        `groups` are judged, in the order in which they were made, and `wanted` is the number of
        groups of a generation.
        """
        if self.s["group_filter"] == "off":
            return groups
        if self.s["group_filter"] == "drop":
            alive = [group for group in groups if group.alive]
            if self.s["scale_rewards"] == "batch":
                self.set_advantages(alive)
            return [group if group.alive else silenced(group) for group in groups]
        staleness = self.s["max_staleness"]
        fresh = [g for g in self.carried if step - g.completions[0].sampled_at <= staleness]
        alive = [*fresh, *(group for group in groups if group.alive)]
        dead = [group for group in groups if not group.alive]
        chosen = alive[:wanted]
        self.carried = alive[wanted:]
        if self.s["scale_rewards"] == "batch":
            self.set_advantages(chosen)
        return [*chosen, *map(silenced, dead[: wanted - len(chosen)])]


def of_slots(slots: list[Group]) -> list[Group]:
    """Return the groups of the prompts that neighboring slots have in common."""
    groups: list[Group] = []
    for slot in slots:
        same = groups and groups[-1].completions[0].prompt == slot.completions[0].prompt
        if same:
            groups[-1].completions += slot.completions
        else:
            groups.append(slot)
    return groups


def silenced(group: Group) -> Group:
    """Return a group that is not trained on, and not counted."""
    return Group([replace(c, left_out=True, signal=False) for c in group.completions], False)


def spread(completion: Completion, of_turns: list[float]) -> tuple[float, ...]:
    """Return for each token the advantage of its turn; 0 for tokens of the environment."""
    turn = -1
    before = 0
    advantages = []
    for mine in completion.wrote:
        turn += mine and not before
        before = mine
        advantages.append(of_turns[turn] if mine else 0.0)
    return tuple(advantages)


# ---- the policy


class Policy:
    """The distribution that tokens are drawn from, under any weights."""

    def __init__(self, model: torch.nn.Module, settings: dict[str, Any], order: str):
        self.model, self.order = model, order
        options = {**settings, **(settings["generation_kwargs"] or {})}
        policy = settings["logprob_policy"]
        self.temperature = 1.0 if policy == "model" else float(options["temperature"])
        sampling = policy == "sampling"
        self.top_k = options["top_k"] if sampling else 0
        self.top_p = options["top_p"] if sampling else 1.0
        self.min_p = (options["min_p"] or 0.0) if sampling else 0.0
        self.suppressed = (options.get("suppress_tokens") or []) if sampling else []
        masks = ("typical_p", "epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size")
        self.masked = sampling and any(options.get(name) for name in masks)
        self._loaded: Any = None

    @property
    def truncated(self) -> bool:
        """Whether the tokens of probability 0 may differ between positions."""
        return self.masked or self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def load(self, weights: dict[str, Tensor]) -> None:
        """Take other weights."""
        if weights is not self._loaded:
            self.model.load_state_dict(weights, strict=False)
            self._loaded = weights

    def scores(self, completion: Completion) -> Tensor:
        """Return the logits of each token's position, divided by the temperature: (T, V)."""
        ids = torch.tensor([completion.prompt + completion.ids])
        logits = self.model(input_ids=ids).logits[0]
        first = len(completion.prompt) - 1
        return logits[first : first + len(completion.ids)] / self.temperature

    def kept(self, completion: Completion, weights: dict[str, Tensor]) -> list[list[bool]] | None:
        """Return the tokens that truncation keeps at each position, as it was recorded or from the
        weights that sampled.
        """
        if not self.truncated:
            return None
        if completion.kept is not None:
            return completion.kept
        self.load(weights)
        with torch.no_grad():
            return [self.kept_of(row.tolist()) for row in self.scores(completion)]

    def kept_of(self, z: list[float]) -> list[bool]:
        """Return the tokens that truncation keeps, given their scores."""
        steps = [self.by_top_k, self.by_top_p, self.by_min_p]
        if self.order == "vllm":
            steps = [self.by_min_p, self.by_top_k, self.by_top_p]
        kept = [token for token in range(len(z)) if token not in self.suppressed]
        for step in steps:
            kept = step(z, kept)
        return [token in kept for token in range(len(z))]

    def by_top_k(self, z: list[float], kept: list[int]) -> list[int]:
        if not 0 < self.top_k < len(kept):
            return kept
        least = sorted((z[token] for token in kept), reverse=True)[self.top_k - 1]
        decided(*((z[token], least) for token in kept if z[token] != least))
        return [token for token in kept if z[token] >= least]

    def by_top_p(self, z: list[float], kept: list[int]) -> list[int]:
        if self.top_p >= 1.0:
            return kept
        total = sum(math.exp(z[token]) for token in kept)
        mass = 0.0
        chosen = []
        for token in sorted(kept, key=lambda token: -z[token]):
            decided((mass, self.top_p))
            if mass >= self.top_p:
                break
            chosen.append(token)
            mass += math.exp(z[token]) / total
        return chosen

    def by_min_p(self, z: list[float], kept: list[int]) -> list[int]:
        if not self.min_p:
            return kept
        most = max(z[token] for token in kept)
        shares = {token: math.exp(z[token] - most) for token in kept}
        decided(*((share, self.min_p) for share in shares.values()))
        return [token for token in kept if shares[token] >= self.min_p]

    def log_probs(
        self,
        completion: Completion,
        weights: dict[str, Tensor],
        kept: list[list[bool]] | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the log-prob of each token and the entropy of its position. A token that was drawn
        was also kept.
        """
        if not completion.ids:
            return [], []
        self.load(weights)
        logps = []
        entropies = []
        for t, z in enumerate(self.scores(completion)):
            token = completion.ids[t]
            there = [v not in self.suppressed for v in range(len(z))] if kept is None else kept[t]
            there = torch.tensor(there)
            there[token] = True
            log_p = z[there].log_softmax(-1)
            logps.append(log_p[there[:token].sum()])
            entropies.append(-(log_p.exp() * log_p).sum())
        return logps, entropies


def decided(*pairs: tuple[float, float]) -> None:
    """Raise `Undecided` if two figures are so close that rounding decides which is larger."""
    for a, b in pairs:
        if abs(a - b) <= CLOSE * max(abs(a), abs(b), 1e-3):
            raise Undecided(f"{a:g} is about {b:g}")


# ---- the loss


@dataclass
class Scored:
    """A completion with the figures that its loss reads; lists have one entry per token."""

    completion: Completion
    kept: list[list[bool]] | None
    old: list[float] | None  # of the policy that ratios compare with; `None`: of the present one
    ref: list[float] | None
    correction: list[float]  # old divided by the sampler, bounded; 1 without a separate sampler
    high: list[bool] = field(default_factory=list)  # the tokens of high entropy


class StepLoss:
    """The loss of one optimizer step by the settings of a run."""

    def __init__(self, settings: dict[str, Any], separate: bool, length: int):
        self.s, self.separate, self.length = settings, separate, length
        self.to_sampler = separate and settings["behaviour_policy"] == "sampler"
        self.corrects = (
            separate and not self.to_sampler and settings["vllm_importance_sampling_correction"]
        )

    def correction(self, completion: Completion, old: list[float]) -> list[float]:
        """Return the bounded ratio of each token between the policy as scored by the trainer and
        the sampler.
        """
        if not self.corrects:
            return [1.0] * len(completion.ids)
        assert completion.sampled is not None
        differences = [
            0.0 if math.isnan(sampled) else before - sampled
            for before, sampled in zip(old, completion.sampled, strict=True)
        ]
        counts = completion.counts
        mode = self.s["vllm_importance_sampling_mode"]
        if not mode.startswith("token"):
            total = sum(differences[t] for t in counts)
            if mode.startswith("geometric"):
                total /= max(len(counts), 1)
            differences = [total] * len(differences)
        return [self.bounded(exp(x), mode) for x in differences]

    def bounded(self, ratio: float, mode: str) -> float:
        low = self.s["vllm_importance_sampling_clip_min"] or 0.0
        high = self.s["vllm_importance_sampling_clip_max"]
        high = math.inf if high is None else high
        if mode.endswith("truncate"):
            return min(max(ratio, low), high)
        decided((ratio, low), (ratio, high))
        return ratio if low <= ratio <= high else 0.0

    def policy_terms(self, row: Scored, logps: list[Tensor], old: list[float]) -> list[Tensor]:
        """Return the policy term of each token that counts."""
        c = row.completion
        counts = c.counts
        log_ratios = {t: logps[t] - old[t] for t in counts}
        ratios = {t: log_ratio.exp() for t, log_ratio in log_ratios.items()}
        if self.s["importance_sampling_level"] == "sequence" and counts:
            mean = sum(float(x.detach()) for x in log_ratios.values()) / len(counts)
            ratios = {  # GSPO-token, arXiv 2507.18071, section 4.3
                t: exp(mean) * (logps[t] - logps[t].detach()).exp() for t in counts
            }
        far = self.far_from_sampler(row, logps, old)
        terms = []
        for t in counts:
            advantage = c.advantages[t]
            correction = row.correction[t]
            if self.s["loss_type"] == "vespo":
                weight = self.vespo(log_ratios, row, advantage)
                term = -weight * advantage * logps[t]
                correction = 1.0  # it is in the weight
            else:
                term = self.term(ratios[t], advantage, logps[t], old[t])
            dropped = far and advantage < 0
            if dropped or (row.high and not row.high[t]):
                term = term * 0.0
            terms.append(term * correction)
        return terms

    def far_from_sampler(self, row: Scored, logps: list[Tensor], old: list[float]) -> bool:
        """DeepSeek-V3.2 (arXiv 2512.02556): whether the policy has moved away from what sampled the
        sequence.
        """
        threshold = self.s["off_policy_mask_threshold"]
        counts = row.completion.counts
        if threshold is None or not counts:
            return False
        sampled = row.completion.sampled or [math.nan] * len(old)
        before = [old[t] if math.isnan(sampled[t]) else sampled[t] for t in counts]
        moved = [b - float(logps[t].detach()) for b, t in zip(before, counts, strict=True)]
        kl = sum(moved) / len(moved)
        decided((kl, threshold))
        return kl > threshold

    def vespo(self, log_ratios: dict[int, Tensor], row: Scored, advantage: float) -> float:
        log_w = sum(min(max(float(x.detach()), -20.0), 20.0) for x in log_ratios.values())
        beside = [row.correction[t] for t in log_ratios]
        if not self.s["vllm_importance_sampling_mode"].startswith("token"):
            beside = beside[:1]  # it is that of the sequence
        lowest = math.log(1e-8)
        for ratio in beside:
            log_w += min(max(math.log(ratio) if ratio else -math.inf, lowest), 20.0)
        log_w = min(max(log_w, lowest), 20.0)
        sign = "pos" if advantage >= 0 else "neg"
        k = self.s[f"vespo_k_{sign}"]
        lam = max(self.s[f"vespo_lambda_{sign}"], 1e-4)
        return exp(lam + k * log_w - lam * exp(log_w))

    def term(self, w: Tensor, a: float, logp: Tensor, old: float) -> Tensor:
        """Return the policy term of a token with the ratio `w`."""
        s = self.s
        value = float(w.detach())
        low = 1 - s["epsilon"]
        high = s["epsilon"] if s["epsilon_high"] is None else s["epsilon_high"]
        if s["loss_type"] == "cispo":
            return -min(value, high) * a * logp
        if s["loss_type"] == "dppo":
            moved = abs(exp(float(logp.detach())) - exp(old))
            decided((moved, s["dppo_delta"]))
            if moved > s["dppo_delta"]:
                decided((value, 1.0))
                if value > 1 if a > 0 else value < 1:
                    return logp * 0.0
            return -w * a
        if s["loss_type"] == "sapo":
            tau = s["sapo_temperature_pos"] if a > 0 else s["sapo_temperature_neg"]
            return -(4 / tau) * a * torch.sigmoid(tau * (w - 1))
        bounds = [low, 1 + high, *([s["delta"]] if s["delta"] is not None else [])]
        decided(*((value, bound) for bound in bounds))
        first = w if s["delta"] is None or value < s["delta"] else w.new_tensor(float(s["delta"]))
        inside = w if low <= value <= 1 + high else w.new_tensor(low if value < 1 else 1 + high)
        return -torch.minimum(first * a, inside * a)

    def kl_terms(self, row: Scored, logps: list[Tensor], old: list[float]) -> list[Tensor]:
        """Return the estimate of the KL of each token that counts."""
        assert row.ref is not None
        terms = []
        for t in row.completion.counts:
            log_r = row.ref[t] - logps[t]
            k1 = -log_r
            k2 = log_r * log_r / 2
            k3 = log_r.exp() - log_r - 1
            term = {"k1": k1, "k2": k2, "k3": k3}[self.s["kl_estimator"]]
            if self.s["use_bias_correction_kl"]:
                ratio = (logps[t] - old[t]).exp() * row.correction[t]
                if self.s["kl_estimator"] == "k3":  # r * ratio does not depend on the policy
                    r_ratio = exp(row.ref[t] - old[t]) * row.correction[t]
                    term = r_ratio - (log_r + 1) * ratio
                else:
                    term = term * ratio
            terms.append(term)
        return terms

    def weighed(self, terms: list[Tensor], sequences: int, tokens: int) -> Tensor:
        """Return a completion's share of the step's loss."""
        total = sum(terms, torch.zeros(()))
        sequences = max(sequences, 1)
        tokens = max(tokens, 1)
        loss_type = self.s["loss_type"]
        if loss_type in ("grpo", "sapo"):
            return total / max(len(terms), 1) / sequences
        if loss_type == "dr_grpo":
            return total / (sequences * self.length)
        return total / (sequences if loss_type == "luspo" else tokens)


@dataclass
class Entropy:
    """The coefficient of the entropy bonus; adaptive as in Skywork-OR1 (arXiv 2505.22312)."""

    s: dict[str, Any]
    last: float = math.inf

    def __post_init__(self) -> None:
        self.coef = self.s["entropy_coef"]

    @property
    def now(self) -> float:
        if not self.s["use_adaptive_entropy"]:
            return self.coef
        return self.coef if self.last <= self.s["entropy_target"] else 0.0

    def observe(self, entropy: float | None) -> None:
        if not self.s["use_adaptive_entropy"] or entropy is None:
            return
        decided((entropy, self.s["entropy_target"]))
        self.last = entropy
        up = 1 if entropy <= self.s["entropy_target"] else -1
        moved = self.coef + up * self.s["entropy_coef_delta"]
        self.coef = min(max(moved, self.s["entropy_coef_min"]), self.s["entropy_coef_max"])


# ---- a run


class Oracle:
    """The gradients of a recorded run.

    Args:
        model: any of the run's architecture.
        run: `settings`, `names` of the rewards, `separate`, `order`, `length`, `generations` of all
            ranks, and `steps` with the weights before each optimizer step and those of the
            reference.
    """

    def __init__(self, model: torch.nn.Module, run: dict[str, Any]):
        self.run, self.s = run, {**DEFAULTS, **run["settings"]}
        self.policy = Policy(model, self.s, run["order"])
        self.loss = StepLoss(self.s, run["separate"], run["length"])
        self.judging = Judging(self.s, run["names"], run["num_generations"])
        self.entropy = Entropy(self.s)
        self.tables: list[list[list[list[Scored]]]] = []  # generation, rank, slice

    def gradient(self, step: int) -> tuple[dict[str, Tensor], float]:
        """Return the gradient of an optimizer step, which follows those before, and the sum of its
        completions' norms.
        """
        batches = self.micro_batches(step)
        rows = [row for batch in batches for rank in batch for row in rank]
        weights = self.run["steps"][step]["weights"]
        self.choose_high(batches, weights)
        counted = [row for row in rows if not row.completion.left_out]
        useful = self.s["advantage_normalizer"] == "useful"
        dividing = [row for row in counted if row.completion.signal] if useful else counted
        counts = len(dividing), sum(len(row.completion.counts) for row in dividing)
        of_all = len(counted), sum(len(row.completion.counts) for row in counted)
        right = sum(len(row.completion.counts) for row in rows if row.completion.right)
        shares = self.bonus_shares(batches)
        parameters = dict(self.policy.model.named_parameters())
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        norms = 0.0
        entropies: list[float] = []
        for row in rows:
            if not row.completion.counts:
                continue
            logps, spreads = self.policy.log_probs(row.completion, weights, row.kept)
            old = row.old or [float(x.detach()) for x in logps]
            loss = self.loss.weighed(self.loss.policy_terms(row, logps, old), *counts)
            if self.s["beta"]:
                kl = self.loss.weighed(self.loss.kl_terms(row, logps, old), *of_all)
                loss = loss + self.s["beta"] * kl
            for t in row.completion.counts if row.completion.right else ():  # VAPO, 2504.05118
                loss = loss - self.s["positive_nll_coef"] * logps[t] / right
            seen = [t for t in row.completion.counts if not row.high or row.high[t]]
            entropies += [float(spreads[t].detach()) for t in seen]
            for t in seen if self.entropy.now else ():
                loss = loss - self.entropy.now * shares[id(row)] * spreads[t]
            if not loss.requires_grad:  # all of its tokens are clipped
                continue
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            square = 0.0
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient
                    square += float((gradient * gradient).sum())
            norms += math.sqrt(square)
        self.entropy.observe(sum(entropies) / len(entropies) if entropies else None)
        return total, norms

    def bonus_shares(self, batches: list[list[list[Scored]]]) -> dict[int, float]:
        """Return the weight of one token's entropy in the bonus, by completion.

        Without a quantile it is the mean over the step's tokens, else over those of each rank's
        micro-batch.
        """
        shares = {}
        whole = sum(len(r.completion.counts) for batch in batches for rank in batch for r in rank)
        for batch in batches:
            for rank in batch:
                high = sum(row.high[t] for row in rank if row.high for t in row.completion.counts)
                parts = len(batches) * len(batch) * max(high, 1)
                for row in rank:
                    shares[id(row)] = 1 / parts if row.high else 1 / max(whole, 1)
        return shares

    def choose_high(self, batches: list[list[list[Scored]]], weights: dict[str, Tensor]) -> None:
        """Note the tokens of highest entropy in their micro-batch, over all ranks."""
        share = self.s["top_entropy_quantile"]
        if share >= 1.0:
            return
        for batch in batches:
            rows = [row for rank in batch for row in rank if row.completion.counts]
            entropies: dict[int, list[float]] = {}
            with torch.no_grad():
                for row in rows:
                    spreads = self.policy.log_probs(row.completion, weights, row.kept)[1]
                    entropies[id(row)] = list(map(float, spreads))
            counted = [entropies[id(row)][t] for row in rows for t in row.completion.counts]
            if not counted:
                continue
            least = torch.tensor(counted, dtype=torch.float64).quantile(1 - share).item()
            decided(*((entropy, least) for entropy in counted))
            for row in rows:
                row.high = [entropy >= least for entropy in entropies[id(row)]]

    def micro_batches(self, step: int) -> list[list[list[Scored]]]:
        """Return the completions of an optimizer step by micro-batch and rank."""
        cut = self.run["cut"]
        uses = cut["slices"] * cut["num_iterations"]
        first = step * cut["accumulation"]
        batches = []
        for number in range(first, first + cut["accumulation"]):
            if number // uses == len(self.tables):
                self.tables.append(self.table(number // uses))
            ranks = self.tables[number // uses]
            # a copy: what has high entropy is another thing in each step
            batches.append([list(map(replace, rank[number % cut["slices"]])) for rank in ranks])
        return batches

    def table(self, number: int) -> list[list[list[Scored]]]:
        """Return the completions of a generation as they are trained on, by rank and slice."""
        generation = self.run["generations"][number]
        step = generation["step"]
        size = self.run["num_generations"]
        slices = self.run["cut"]["slices"]
        groups: list[Group] = []
        for call in generation["calls"]:
            rows = [self.completion(row, step) for row in call]
            made = [
                Group(
                    rows[i : i + size],
                    gains=[row["gains"] for row in call[i : i + size]] if call[i]["gains"] else [],
                )
                for i in range(0, len(rows), size)
            ]
            if self.s["max_slots_per_prompt"] > 1:
                made = of_slots(made)
            self.judging.judge(made)
            groups += made
        used = self.judging.used(groups, step, self.run["groups"])
        completions = [c for group in used for c in group.completions]
        share = len(completions) // len(generation["orders"])
        table = []
        for rank, order in enumerate(generation["orders"]):
            mine = completions[rank * share : (rank + 1) * share]
            ordered = [mine[i] for i in order] if slices > 1 else mine
            scored = [self.scored(c, step) for c in ordered]
            part = len(scored) // slices
            table.append([scored[i * part : (i + 1) * part] for i in range(slices)])
        return table

    def completion(self, row: dict[str, Any], step: int) -> Completion:
        """Return a recorded completion."""
        made = row["policy_step"]
        masked = self.s["mask_truncated_completions"] and row["truncated"]
        return Completion(
            row["prompt"],
            row["ids"],
            row["wrote"] or [1] * len(row["ids"]),
            row["kept"],
            row["sampled"],
            step,
            made if isinstance(made, int) else (made or [step])[0],
            masked,
            tuple(None if r is None else Fraction(r) for r in row["rewards"]),
        )

    def scored(self, completion: Completion, step: int) -> Scored:
        """Score a completion by the policies that do not change while it is trained on."""
        steps = self.run["steps"]
        at_arrival = steps[completion.arrived]["weights"]
        with torch.no_grad():
            kept = self.policy.kept(completion, at_arrival)
            if self.loss.to_sampler:
                assert completion.sampled is not None
                old = [0.0 if math.isnan(x) else x for x in completion.sampled]
            else:
                old = list(map(float, self.policy.log_probs(completion, at_arrival, kept)[0]))
            ref = None
            if self.s["beta"]:
                reference = steps[step]["reference"]
                ref = list(map(float, self.policy.log_probs(completion, reference, kept)[0]))
        return Scored(completion, kept, old, ref, self.loss.correction(completion, old))
