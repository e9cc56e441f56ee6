"""The formulas of the losses, written with loops over sequences and tokens, for tests to compare
with.
"""

from __future__ import annotations

import math

import torch
from transformers import AutoModelForCausalLM


def token_logps(model, prompt: list[int], completion: list[int]) -> list[torch.Tensor]:
    """One sequence by itself, without padding."""
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
    return [
        logits[len(prompt) + t - 1].log_softmax(-1)[token] if completion else None
        for t, token in enumerate(completion)
    ]


def rows_of(used, model, old_model, ref_model):
    """The step's completions as the oracle wants them, one by one."""
    rows = []
    for part in used:
        for i in range(len(part)):
            prompt = part.prompt_ids[i][part.prompt_mask[i].bool()].tolist()
            completion = part.completion_ids[i][part.completion_mask[i].bool()].tolist()
            with torch.no_grad():
                old = token_logps(old_model, prompt, completion)
                ref = token_logps(ref_model, prompt, completion) if ref_model else None
            rows.append(
                {
                    "logps": token_logps(model, prompt, completion),
                    "old": old,
                    "ref": ref,
                    "advantage": float(part.advantages[i]),
                    "masked": not bool(part.counted[i]),
                    "useful": bool(part.signal[i]),
                }
            )
    return rows


def oracle_gradients(
    used, folder, weights, ref_model, old_weights=None, loss_type="grpo", max_length=9, **o
):
    """The gradient of a step of these slices by `loss_of_step`, one completion at a time."""
    model, old = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for _ in range(2)
    )
    model.load_state_dict(weights, strict=False)
    old.load_state_dict(old_weights or weights, strict=False)
    loss = loss_of_step(loss_type, rows_of(used, model, old, ref_model), max_length=max_length, **o)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def loss_of_step(
    loss_type, rows, *, max_length, level="token", beta=0.0, kl="k3", corrected=True, **o
):
    """The loss of one optimizer step.

    `rows`: dicts with `logps`, `old`, `ref` (lists of scalars, a token each), `advantage`, `masked`
    (truncated and left out), for the step's counts `useful`, and `weights` of tokens where another
    engine has sampled. `advantage` is a number, or a list with that of each token.
    """
    o = {"low": 0.2, "high": 0.2, "delta": None, "useful_only": False, **o}
    counted = [r for r in rows if not r["masked"]]
    dividing = [r for r in counted if r["useful"]] if o["useful_only"] else counted
    policy = []
    kls = []
    for r in counted:
        ratios = [lp - old for lp, old in zip(r["logps"], r["old"], strict=True)]
        advantages = r["advantage"]
        by_token = isinstance(advantages, list) or "weights" in r or loss_type == "dppo"
        w = importance_ratios(ratios, level, by_token)
        advantages = advantages if isinstance(advantages, list) else [advantages] * len(w)
        terms = []
        kl_terms = []
        for t in range(len(w)):
            weights = r.get("weights") or [torch.ones(())] * len(w)  # of the sampler's correction
            beside = [weight.log() for weight in weights] if loss_type == "vespo" else []
            term = token_term(
                loss_type, w[t], advantages[t], r["logps"][t], ratios + beside, o, r["old"][t]
            )
            terms.append(term if loss_type == "vespo" else term * weights[t])
            if beta:
                d = r["ref"][t] - r["logps"][t]
                k = {"k1": -d, "k2": d * d / 2, "k3": torch.exp(d) - d - 1}[kl]
                kl_terms.append(k * torch.exp(ratios[t]) * weights[t] if corrected else k)
        policy.append(terms)
        kls.append(kl_terms)
    total = weigh(loss_type, policy, dividing, max_length)
    return total + (beta * weigh(loss_type, kls, counted, max_length) if beta else 0.0)


def importance_ratios(log_ratios, level, by_token):
    """GRPO's of each token, or those of a sequence.

    GSPO's, or where tokens differ GSPO-token's (2507.18071, eq. 5 and 14).
    """
    if level == "token":
        return [torch.exp(x) for x in log_ratios]
    s = torch.exp(sum(log_ratios) / max(len(log_ratios), 1)) if log_ratios else torch.ones(())
    return [s.detach() * torch.exp(x - x.detach()) if by_token else s for x in log_ratios]


def weigh(loss_type, per_token, dividing, max_length):
    n = max(len(dividing), 1)
    tokens = max(sum(len(r["logps"]) for r in dividing), 1)
    total = torch.zeros(())
    for terms in per_token:
        for term in terms:
            if loss_type in ("grpo", "sapo"):
                total = total + term / len(terms) / n
            elif loss_type == "dr_grpo":
                total = total + term / (n * max_length)
            elif loss_type == "luspo":
                total = total + term / n
            else:
                total = total + term / tokens
    return total


def token_term(loss_type, w, a, logp, log_ratios, o, old=None):
    if loss_type == "cispo":
        return -min(w.item(), o["high"]) * a * logp
    if loss_type == "dppo":
        moved = abs(math.exp(logp.item()) - math.exp(old.item()))
        further = w > 1 if a > 0 else w < 1
        return torch.zeros(()) if further and moved > o.get("moved", 0.15) else -w * a
    if loss_type == "sapo":
        tau = 1.0 if a > 0 else 1.05
        return -(4 / tau) * a / (1 + torch.exp(-tau * (w - 1)))
    if loss_type == "vespo":
        log_w = sum(min(max(x.item(), -20.0), 20.0) for x in log_ratios)
        log_w = min(max(log_w, math.log(1e-8)), 20.0)
        k, lam = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
        return -math.exp(lam + k * log_w - lam * math.exp(log_w)) * a * logp
    first = w if o["delta"] is None or w < o["delta"] else torch.tensor(float(o["delta"]))
    inside = (
        w
        if 1 - o["low"] <= w <= 1 + o["high"]
        else torch.tensor(1 - o["low"] if w < 1 else 1 + o["high"])
    )
    return -torch.minimum(first * a, inside * a)
