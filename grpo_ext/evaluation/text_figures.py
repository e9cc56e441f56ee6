"""Figures of completions as texts, which a reward that asks for nothing else may destroy."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from grpo_ext.common.estimates import mean_of
from grpo_ext.evaluation.score import Row, Sample, with_errors
from grpo_ext.scoring.frozen_model import FrozenModel, load_frozen

MAX_TOKENS = 1024  # of a text that are scored


def add_text_figures(evaluation: dict[str, Any], first_model: str) -> None:
    """Add the figures of `text_figures` to each part of the results of `evaluate_models`.

    Args:
        evaluation: the results; its summaries get the figures.
        first_model: folder or id of the model that training started from.
    """
    frozen = load_frozen(first_model)
    for model, parts in evaluation["samples"].items():
        for part, samples in parts.items():
            figures = text_figures(evaluation["rows"], samples, frozen)
            evaluation["summaries"][model][part] |= figures


def text_figures(
    rows: Sequence[Row], samples: Sequence[Sample], first_model: FrozenModel
) -> dict[str, float | None]:
    """Return the figures of some completions as texts.

    Args:
        rows: with `prompt`.
        samples: completions of these rows.
        first_model: scores the texts.

    Returns:
        `ended`: share of completions that end before the limit; `words`: number of words;
        `first_model_logp`: mean log-prob of a text's tokens under the first model, in nats. Each is
        a mean over completions with its standard error under `..._se`, over rows. And
        `distinct_words`: number of different words in all of them.
    """
    words = [sample.text.split() for sample in samples]
    pairs = []
    scored_rows = []
    for sample in samples:
        text_ids = first_model.text_ids(sample.text, MAX_TOKENS)
        if text_ids:
            pairs.append((first_model.prompt_ids(rows[sample.row]["prompt"]), text_ids))
            scored_rows.append(sample.row)
    logps = [logps.mean().item() for logps in first_model.log_probs(pairs)]
    of_rows = [sample.row for sample in samples]
    figures = with_errors(
        {
            "ended": mean_of(
                [float(sample.finish_reason == "stop") for sample in samples], of_rows
            ),
            "words": mean_of([float(len(of_text)) for of_text in words], of_rows),
            "first_model_logp": mean_of(logps, scored_rows),
        }
    )
    figures["distinct_words"] = len({word.strip(".,;:!?\"'()*").lower() for word in chain(*words)})
    return figures
