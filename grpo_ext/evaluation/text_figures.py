"""Measure the text quality of completions, which training can harm if no reward checks it."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from grpo_ext.common.estimates import mean_of
from grpo_ext.evaluation.score import Row, Sample, with_errors
from grpo_ext.rewards.instruction_checks import words_of
from grpo_ext.scoring.frozen_model import FrozenModel, load_frozen

MAX_TOKENS = 1024  # maximum number of tokens per completion for which log-probs are computed


def add_text_figures(evaluation: dict[str, Any], first_model: str, dtype: str) -> None:
    """Add the metrics of `text_figures` to the results of `evaluate_models`.

    Args:
        evaluation: the results, changed in place: each part (`greedy`, `sampled`) of each model's
            summary receives the metrics.
        first_model: the folder or hub id of the model that training started from.
        dtype: the torch name of the dtype of this model's weights, such as "bfloat16".

    Raises:
        RuntimeError: under DeepSpeed ZeRO-3, or under FSDP with `fsdp_cpu_ram_efficient_loading`,
            because the model cannot be loaded whole.
        OSError: if there is no such model.
    """
    frozen = load_frozen(first_model, dtype=dtype)
    for model, parts in evaluation["samples"].items():
        for part, samples in parts.items():
            figures = text_figures(evaluation["rows"], samples, frozen)
            evaluation["summaries"][model][part] |= figures


def text_figures(
    rows: Sequence[Row],
    samples: Sequence[Sample],
    first_model: FrozenModel,
) -> dict[str, float | None]:
    """Return text metrics of completions, such as word counts and mean log-probs.

    Args:
        rows: the rows, with `prompt`.
        samples: the completions of these rows.
        first_model: the model under which log-probs are computed.

    Returns:
        A dict with these means over completions, each with a standard error, clustered by row,
        under `NAME_se`:

        - `ended`: the share of completions that end before the length limit.
        - `words`: the number of words.
        - `first_model_logp`: the mean log-prob, in nats, of a completion's first `MAX_TOKENS`
          tokens under `first_model`; completions without tokens are left out.

        A mean and its error are `None` if there is nothing to average; the error is also `None` for
        a single row. In addition, `distinct_words` is the number of different words in all
        completions together; case is ignored.
    """
    words = [words_of(sample.text.lower()) for sample in samples]
    pairs = []
    scored_rows = []
    for sample in samples:
        text_ids = first_model.text_ids(sample.text, MAX_TOKENS)
        if text_ids:
            prompt_ids = first_model.prompt_ids(rows[sample.row]["prompt"])
            pairs.append((prompt_ids, text_ids))
            scored_rows.append(sample.row)
    mean_logps = [logps.mean().item() for logps in first_model.log_probs(pairs)]
    ended = [sample.finish_reason == "stop" for sample in samples]
    word_counts = list(map(len, words))
    of_rows = [sample.row for sample in samples]
    figures = with_errors(
        {
            "ended": mean_of(ended, of_rows),
            "words": mean_of(word_counts, of_rows),
            "first_model_logp": mean_of(mean_logps, scored_rows),
        }
    )
    figures["distinct_words"] = len(set(chain(*words)))
    return figures
