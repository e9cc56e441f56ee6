"""Check that TRL can apply `cast_lm_head_to_fp32` to a recipe's model."""

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from grpo_ext.preflight.forecast import local_config
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values

KEY = "cast_lm_head_to_fp32"


def check_head(v: Values, findings: Findings) -> None:
    """Report `cast_lm_head_to_fp32` as a problem if it would make TRL fail at the start.

    With tied embeddings, TRL looks for `model.model.embed_tokens`, which models with an adapter and
    some other models do not have. Nothing is reported if the model's config cannot be read without
    contacting the hub.
    """
    if not v[KEY] or not v["model_name_or_path"]:
        return
    config = local_config(v)
    if config is None or not getattr(config, "tie_word_embeddings", False):
        return
    if v["use_peft"]:
        findings.problem(
            "`cast_lm_head_to_fp32: true` fails with an adapter, because the embeddings of this "
            "model are tied to its head, and TRL does not find them in a model with an adapter. "
            "Set `cast_lm_head_to_fp32: false`. To compute the head in float32 nevertheless, "
            "set `dtype: float32` and `bf16: false`.",
            KEY,
        )
    elif not has_embed_tokens(config, bool(v["trust_remote_code"])):
        findings.problem(
            "`cast_lm_head_to_fp32: true` fails with this model, because its embeddings are tied "
            "to its head, and TRL does not find them under `model.embed_tokens`. Set "
            "`cast_lm_head_to_fp32: false`. To compute the head in float32 nevertheless, set "
            "`dtype: float32` and `bf16: false`.",
            KEY,
        )


def has_embed_tokens(config: PretrainedConfig, trust_remote_code: bool) -> bool:
    """Return whether a model with this config has its embeddings under `model.embed_tokens`.

    Also return `True` for a model that cannot be built, which other checks report.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception:  # not a language model, or an error of the model's own code
        return True
    return hasattr(getattr(model, "model", None), "embed_tokens")
