"""The gradient of a step of episodes, as a run has it and from the formula."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from grpo_ext import GRPOExtTrainer

TRUNCATED = {"temperature": 0.8, "top_k": 25, "top_p": 0.9}


class Noting(GRPOExtTrainer):
    """Keeps the micro-batches that it trains on."""

    def __init__(self, *args, **kwargs):
        self.used = []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs):
        self.used.append(inputs)
        return super()._compute_loss(model, inputs)


class Gradients(TrainerCallback):
    """Those of the first step, and the weights that they are of."""

    found = None

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        if self.found is None:
            self.found = {name: p.grad.clone() for name, p in model.named_parameters()}
            self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def distances(self, wanted):
        """By parameter, the largest difference from `wanted`, relative to its largest number."""
        largest = max(float(gradient.abs().max()) for gradient in wanted.values())
        assert largest > 0
        return {
            name: float((self.found[name] - gradient).abs().max()) / largest
            for name, gradient in wanted.items()
        }


def oracle(folder, weights, used, temperature=1.0, **truncation):
    """The gradient of dapo, a completion at a time and without padding, with the kept sets of the
    sampler.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.load_state_dict(weights, strict=False)
    for part in (batch.rows for batch in used):
        for i in range(len(part)):
            prompt = part.prompt_ids[i][part.prompt_mask[i].bool()]
            said = part.completion_mask[i].bool()
            ids = part.completion_ids[i][said]
            wrote = torch.ones_like(ids) if part.tool_mask is None else part.tool_mask[i][said]
            logits = (
                model(torch.cat([prompt, ids]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
                / temperature
            )
            if truncation:
                logits = logits.masked_fill(~part.kept[i].mask()[: len(ids)], -torch.inf)
            logps = logits.log_softmax(-1).gather(1, ids.unsqueeze(1)).squeeze(1)
            logps = torch.where(wrote.bool(), logps, 0.0)
            (
                -(logps * part.row_advantages[i][..., : len(ids)]).sum() / used[0].counts.tokens
            ).backward()
    return {name: p.grad for name, p in model.named_parameters()}
