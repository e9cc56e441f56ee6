"""The merge of an adapter into the weights of its base model, for engines without peft.

It serves `grpo-ext merge` and `save_merged`. It reads the adapter from the disk, however ranks sharded the model in training.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CONFIG = "adapter_config.json"  # of peft
MERGED = "merged"  # folder of the whole model in the adapter's folder
PROBE_TOKENS = 32
LIMIT, HALF_LIMIT = 1e-3, 0.2  # on differences of log-probs; half types round each weight once more


def merge_adapter(
    folder: Path, out: Path, dtype: str = "auto", *, trust_remote_code: bool = False, replace: bool = False
) -> float:
    """Save the base model of an adapter with the adapter merged into its weights, with tokenizer and chat template.

    Args:
        folder: folder of the adapter: `output_dir`, or a checkpoint.
        out: the new folder, which appears only when it is complete.
        dtype: type of the weights: `"float32"`, `"bfloat16"` or `"float16"`; `"auto"` takes that of the base's files.
        trust_remote_code, replace: whether code of the base may run, and whether an existing `out` may be replaced.

    Returns the largest difference of log-probs between the saved model and base with adapter. `ValueError` if there is no
    adapter or no base, if `out` is not empty, or if that difference is too large.
    """
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = base_of(folder, trust_remote_code)
    if not replace and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} exists and is not empty: name another folder with --out.")
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=trust_remote_code)
        before = log_probs_of(model)
        model = model.merge_and_unload(safe_merge=True)
        kind = str(model.dtype).removeprefix("torch.")
        model.save_pretrained(partial)
        del model  # two large models do not fit
        trained_with = (folder / "tokenizer_config.json").is_file()
        name, revision = (str(folder), None) if trained_with else base
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
        tokenizer.save_pretrained(partial)
        model = AutoModelForCausalLM.from_pretrained(partial, dtype="auto", trust_remote_code=trust_remote_code)
        difference = (log_probs_of(model) - before).abs().max().item()
        if not difference <= (LIMIT if kind == "float32" else HALF_LIMIT):
            raise ValueError(
                f"the adapter of {folder} cannot be merged: log-probs of the merged model differ by up to {difference:.3g}. "
                "The cause is usually an adapter on weights that the base uses twice, such as a tied output head."
            )
        if replace and out.exists():
            shutil.rmtree(out)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return difference


def save_merged(recipe: Any) -> int:
    """Merge the adapter of a finished run, and return the exit code."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # ZeRO-3's config would load the model in parts, on ranks that have ended
    folder = recipe.output_dir
    dtype, trust = recipe.model.dtype or "auto", recipe.get("trust_remote_code")
    try:
        difference = merge_adapter(folder, folder / MERGED, dtype, trust_remote_code=trust, replace=True)
    except (ValueError, OSError) as error:
        how = f"`grpo-ext merge --model {folder}` tries again."
        print(f"The adapter is saved, and the merged model is not: {error}\n{how}", file=sys.stderr)
        return 1
    print(f"Saved to {folder / MERGED}, with the adapter merged (log-probs differ by at most {difference:.1g}).")
    return 0


def base_of(folder: Path, trust_remote_code: bool = False) -> tuple[str, str | None]:
    """Return name and revision of the base model of an adapter; `ValueError` if adapter or base cannot be loaded."""
    from peft import PeftConfig
    from transformers import AutoConfig

    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    if not (folder / CONFIG).is_file():
        whole = (folder / "config.json").is_file()
        what = "a whole model, which needs no merging" if whole else "no adapter"
        raise ValueError(f"{folder} contains {what}: {CONFIG} is missing. A run with use_peft: true writes it.")
    config = PeftConfig.from_pretrained(str(folder))
    name, revision = config.base_model_name_or_path, config.revision
    try:
        AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, TypeError) as error:  # TypeError: no name at all
        at = f" at revision {revision}" if revision not in (None, "main") else ""
        first = (str(error).splitlines() or [type(error).__name__])[0]
        named = f"base_model_name_or_path in {folder / CONFIG} names it"
        where = "a relative folder counts from the working directory."
        raise ValueError(f"the base model {name}{at} cannot be loaded here ({first[:160]}). {named}; {where}") from None
    return name, revision


def log_probs_of(model: Any) -> torch.Tensor:
    """Return the log-probs (T, V) of a model over a fixed sequence of tokens."""
    import torch

    size = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(size, (1, PROBE_TOKENS), generator=torch.Generator().manual_seed(0))  # (1, T)
    with torch.no_grad():
        return model.eval()(tokens).logits[0].float().log_softmax(-1)  # (T, V)
