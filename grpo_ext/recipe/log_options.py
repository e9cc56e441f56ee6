"""Options for `samples.jsonl`, in which a run logs its completions."""

from dataclasses import dataclass

from grpo_ext.recipe.values import Share


@dataclass
class LogOptions:
    """Recipe keys for logs; a base of `GRPOExtConfig`.

    Args:
        log_samples (`float`, defaults to 1.0): the share of groups whose completions are written to
            `samples.jsonl` in `output_dir`; 0 writes none.
        log_tokens (`bool`, defaults to `False`): whether each line of `samples.jsonl` also contains
            the tokens of the completion, each with its advantage, its age in steps and, if the
            sampler or a scoring pass returned it, its log-prob. The report shows them. The lines
            become about ten times as long.
    """

    log_samples: Share = 1.0
    log_tokens: bool = False
