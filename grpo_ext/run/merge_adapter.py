"""The merge of an adapter into the weights of its base model, by peft, for engines without peft."""

import shutil
from pathlib import Path
from typing import Any

from grpo_ext.common.adapters import check_model_folder

LIMIT, HALF_LIMIT = 1e-3, 0.2  # on differences of log-probs; half types round each weight once more


def merge_adapter(
    folder: Path, out: Path, dtype: str = "auto", trust_remote_code: bool = False
) -> float:
    """Save the base model of the adapter in `folder`, with the adapter merged into its weights, and its tokenizer to `out`.

    `dtype` is the type of the weights; `"auto"` takes that of the base's files. Returns the largest difference of log-probs
    between the saved model and base with adapter. `ValueError` if that is too large, which removes `out` again, or if `out` is
    not empty; `ValueError` or `OSError` from peft if there is no adapter or no base.
    """
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: name another folder with --out.")
    check_model_folder(folder)
    model = AutoPeftModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=trust_remote_code
    )
    base, before = model.peft_config["default"], log_probs_of(model)
    model.merge_and_unload(safe_merge=True).save_pretrained(out)
    del model  # two large models do not fit
    merged = AutoModelForCausalLM.from_pretrained(
        out, dtype="auto", trust_remote_code=trust_remote_code
    )
    difference = (log_probs_of(merged) - before).abs().max().item()
    if not difference <= (LIMIT if merged.dtype.itemsize == 4 else HALF_LIMIT):
        shutil.rmtree(out)
        why = "The cause is usually an adapter on weights that the base uses twice, such as a tied output head."
        raise ValueError(
            f"log-probs of the merged model would differ by up to {difference:.3g}. {why}"
        )
    saved = (folder / "tokenizer_config.json").is_file()
    name, revision = (str(folder), None) if saved else (base.base_model_name_or_path, base.revision)
    AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    ).save_pretrained(out)
    return difference


def log_probs_of(model: Any) -> Any:
    """Return the log-probs (T, V) of a model over a fixed sequence of tokens."""
    import torch

    size = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(size, (1, 32), generator=torch.Generator().manual_seed(0))  # (1, T)
    with torch.no_grad():
        return model.eval()(tokens).logits[0].float().log_softmax(-1)  # (T, V)
