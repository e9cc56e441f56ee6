"""An adapter written into the weights of its base: a whole model, which any engine loads without peft.

`grpo-ext merge` and a recipe's `save_merged` come here. The adapter is read from the disk, so that it does not matter how the
model lay on the ranks that trained it.
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
MERGED = "merged"  # where the whole model goes, in the adapter's folder
PROBE_TOKENS = 32
LIMIT, HALF_LIMIT = 1e-3, 0.2  # of log-probs before and after; half types round each weight once more


def merge_adapter(
    folder: Path, out: Path, dtype: str = "auto", *, trust_remote_code: bool = False, replace: bool = False
) -> float:
    """Save the base of an adapter with the adapter in its weights, with tokenizer and chat template.

    Args:
        folder: of the adapter, as training leaves it: `output_dir`, or a checkpoint.
        out: the new folder; nothing is there before it is whole.
        dtype: of the weights: `"float32"`, `"bfloat16"` or `"float16"`; `"auto"` takes that of the base's files.
        trust_remote_code, replace: whether code that comes with the base may run, and a folder that is there be replaced.

    Returns the largest difference between log-probs of what was saved, read again, and of base and adapter. `ValueError` if
    there is no adapter or no base, `out` is not empty, or what was saved computes something else.
    """
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = base_of(folder, trust_remote_code)
    if not replace and out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} is there and not empty: name another folder with --out.")
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=dtype, trust_remote_code=trust_remote_code)
        before = log_probs_of(model)
        model = model.merge_and_unload(safe_merge=True)
        kind = str(model.dtype).removeprefix("torch.")
        model.save_pretrained(partial)
        del model  # a large one does not fit twice
        own = (folder / "tokenizer_config.json").is_file()  # the one that was trained with
        name, revision = (str(folder), None) if own else base
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
        tokenizer.save_pretrained(partial)
        model = AutoModelForCausalLM.from_pretrained(partial, dtype="auto", trust_remote_code=trust_remote_code)
        difference = (log_probs_of(model) - before).abs().max().item()
        if not difference <= (LIMIT if kind == "float32" else HALF_LIMIT):
            words = f"cannot be merged: log-probs of the merged model differ by up to {difference:.3g}."
            kind = "An adapter on weights that the base uses twice, such as a tied output head, is of that kind."
            raise ValueError(f"the adapter of {folder} {words} {kind}")
        if replace and out.exists():
            shutil.rmtree(out)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return difference


def save_merged(recipe: Any) -> int:
    """Save adapter and base as one model beside the adapter; the exit code."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # with ZeRO-3's a model would be loaded in parts, on ranks that have left
    folder = Path(recipe.training.output_dir)
    dtype, trust = recipe.model.dtype or "auto", recipe.get("trust_remote_code")
    try:
        difference = merge_adapter(folder, folder / MERGED, dtype, trust_remote_code=trust, replace=True)
    except (ValueError, OSError) as error:
        print(f"The adapter is saved, and the merged model is not: {error}", file=sys.stderr)
        print(f"`grpo-ext merge --model {folder}` tries again.", file=sys.stderr)
        return 1
    print(f"Saved to {folder / MERGED}, with the adapter merged (log-probs differ by at most {difference:.1g}).")
    return 0


def base_of(folder: Path, trust_remote_code: bool = False) -> tuple[str, str | None]:
    """Name and revision of the model that an adapter was trained on; `ValueError` if either of the two is not here."""
    from peft import PeftConfig
    from transformers import AutoConfig

    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}.")
    if not (folder / CONFIG).is_file():
        whole = (folder / "config.json").is_file()
        what = "a whole model, which needs no merging" if whole else "no adapter"
        raise ValueError(f"{folder} holds {what}: {CONFIG} is missing. A run with use_peft: true writes it.")
    config = PeftConfig.from_pretrained(str(folder))
    name, revision = config.base_model_name_or_path, config.revision
    try:
        AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, TypeError) as error:  # TypeError: no name at all
        at = f" at revision {revision}" if revision not in (None, "main") else ""
        first = (str(error).splitlines() or [type(error).__name__])[0]
        named = f"base_model_name_or_path in {folder / CONFIG} names it"
        where = "a folder is looked for from where the command runs."
        raise ValueError(f"the base model {name}{at} cannot be loaded here ({first[:160]}). {named}; {where}") from None
    return name, revision


def log_probs_of(model: Any) -> torch.Tensor:
    """Log-probs (T, V) of a model over some tokens, always the same ones."""
    import torch

    size = model.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(size, (1, PROBE_TOKENS), generator=torch.Generator().manual_seed(0))  # (1, T)
    with torch.no_grad():
        return model.eval()(tokens).logits[0].float().log_softmax(-1)  # (T, V)
