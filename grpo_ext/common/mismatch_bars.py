"""Limits on how far the sampler's and the trainer's probabilities may differ, with their sources.

`grpo-ext numerics` applies these limits before a run, and the alarms of a run apply them during it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A limit on one measure of the mismatch between the sampler's and the trainer's probabilities.

    Values up to the limit are attributed to rounding.
    """

    limit: float
    source: str  # where the limit comes from


#: mean KL divergence per token, in nats
KL = Bar(0.0005, "prime-rl's CI: the mismatch KL of its example hendrycks-sanity, a dense model")
#: mean |log ratio| per token
MEAN_LOG_RATIO = Bar(
    0.05, "NeMo RL's guide for new models: probabilities differ by a factor of at most 1.05"
)
#: share of tokens whose ratio is outside 0.9 to 1.1
SHARE_FAR = Bar(0.01, "a choice of this package: one token in a hundred")
#: share of drawn tokens that top-k, top-p or min-p on the trainer's logits would have removed
BEYOND_EDGE = Bar(0.001, "a choice of this package: in float32 it is about one token in 4,000")
#: mean KL divergence above which rounding is not the cause
NOT_ROUNDING = Bar(0.01, "tinker-cookbook's guide: training is stable below this KL")
