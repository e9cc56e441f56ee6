"""However an optimizer step is cut, and whatever spares it tokens, its gradient is that of the
formula, or it is refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from grpo_ext import GRPOExtConfig
from tests.support.fixed_completions import (
    CUTS,
    GROUP,
    LOSSES,
    Exact,
    apart,
    fixed_completion,
    keep_order,
    lucky,
    train,
)
from tests.support.hunting import hunt, in_child, model
from tests.support.oracle import oracle_gradients

BOUND = 1e-5


class SomeDead(Exact):
    """The same reward throughout the groups of some prompts."""

    def _calculate_rewards(self, inputs: Any, prompts: Any, *args: Any) -> torch.Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, *args)
        for i, prompt in enumerate(prompts):
            if is_dead(self.processing_class(prompt)["input_ids"]):
                rewards[i] = 0.1
        return rewards


def is_dead(prompt: Sequence[int]) -> bool:
    return sum(prompt) % 4 == 1


def advantages(used: list[Any], tokenizer: Any, scale: str, population: bool) -> torch.Tensor:
    """Those of one generation's completions, from the rewards."""
    prompts = [
        tuple(ids[mask.bool()].tolist())
        for part in used
        for ids, mask in zip(part.prompt_ids, part.prompt_mask, strict=True)
    ]
    scores = []
    for i, prompt in enumerate(prompts):
        completion = fixed_completion(
            list(prompt), prompts[:i].count(prompt), len(tokenizer), tokenizer.eos_token_id
        )
        scores.append(0.1 if is_dead(prompt) else lucky(None, [completion])[0])
    whole = torch.tensor(scores, dtype=torch.float64)
    found = whole.clone()
    for prompt in set(prompts):
        group = torch.tensor([other == prompt for other in prompts])
        assert group.sum() == GROUP
        found[group] -= whole[group].mean()
        if scale == "group":
            found[group] /= whole[group].std(correction=0 if population else 1) + 1e-4
    return (
        found / (whole.std(correction=0 if population else 1) + 1e-4) if scale == "batch" else found
    )


def gradient_is_the_formulas(loss_type: str, cut: tuple[int, int], **settings: Any) -> None:
    """The last step of a generation, in a process of its own: rows are kept in their order there.

    Args:
        cut: accumulation and steps_per_generation.
        settings: of the objective, and of what spares tokens.
    """
    high = 5.0 if loss_type == "cispo" else settings["epsilon_high"]
    in_child(lambda: compare(loss_type, *cut, {**settings, "epsilon_high": high}))


def compare(loss_type: str, ga: int, spg: int, s: dict[str, Any]) -> None:
    keep_order()
    steps = max(spg // ga, 1)
    population = s["std_estimator"] == "population"
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as out:
        settings = {
            "trainer_class": SomeDead,
            "config": GRPOExtConfig,
            "steps": steps,
            "learning_rate": 1.0,
            **s,
        }
        try:
            trainer, found = train(model(), out, ga, spg, loss_type=loss_type, **settings)
        except ValueError:  # refused
            return
    for i in range(0, len(trainer.used), spg):
        generation = trainer.used[i : i + spg]
        wanted = advantages(generation, trainer.processing_class, s["scale_rewards"], population)
        given = torch.cat([part.advantages for part in generation]).double()
        torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5, msg="other advantages")
    gradient = oracle_gradients(
        trainer.used[-ga:],
        model(),
        found[-1][1],
        trainer.ref_model,
        found[0][1] if steps > 1 else None,
        loss_type,
        level=s["importance_sampling_level"],
        beta=s["beta"],
        kl=s["kl_estimator"],
        corrected=s["use_bias_correction_kl"],
        low=s["epsilon"],
        high=s["epsilon_high"],
        useful_only=s["advantage_normalizer"] == "useful",
    )
    difference = apart(found[-1][0], gradient)
    assert difference < BOUND * (2 if steps > 1 else 1), f"{difference:.1e} from the formula"


def test_cuts():
    switch = st.booleans()
    choices = {
        "cut": st.sampled_from(CUTS),
        "loss_type": st.sampled_from(LOSSES),
        "beta": st.sampled_from([0.0, 0.1]),
        "kl_estimator": st.sampled_from(["k3", "k3", "k1", "k2"]),
        "use_bias_correction_kl": switch,
        "importance_sampling_level": st.sampled_from(["token", "sequence"]),
        "mask_truncated_completions": switch,
        "std_estimator": st.sampled_from(["sample", "population"]),
        "advantage_normalizer": st.sampled_from(["all", "useful"]),
        "scale_rewards": st.sampled_from(["group", "batch", "none"]),
        "epsilon": st.sampled_from([0.02, 0.2]),
        "epsilon_high": st.sampled_from([0.02, 0.28]),
        "gradient_checkpointing": switch,
        "max_tokens_per_micro_batch": st.sampled_from([None, None, 60, 200]),
        "layout": st.sampled_from(["auto", "padded", "chunks", "packed"]),
        "skip_dead_rows": switch,
    }
    hunt(gradient_is_the_formulas, model, **choices)
