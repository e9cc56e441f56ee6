"""Merge an adapter into its base model with peft, for engines that cannot load adapters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ext.common.adapters import ADAPTER_CONFIG, check_model_folder

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

# Largest accepted difference in log-probs; half-precision types round each weight once more.
FLOAT32_LIMIT = 1e-3
HALF_LIMIT = 0.2


def merge_adapter(
    folder: Path,
    out: Path,
    dtype: str = "auto",
    trust_remote_code: bool = False,
) -> float:
    """Merge an adapter into the weights of its base model, and save the model and its tokenizer.

    Args:
        folder: the folder of the adapter.
        out: the folder to save to, which must be empty or must not exist.
        dtype: the dtype of the merged weights; `"auto"` keeps that of the base model's files.
        trust_remote_code: whether to run code that comes with the base model.

    Returns:
        The largest difference in log-probs between the saved model and the base model with its
        adapter, on a fixed sequence of tokens.

    Raises:
        ValueError: if `out` is not empty, if `folder` has no adapter, if loading a folder could
            block or fill the memory, or if the difference in log-probs is too large; in the last
            case, `out` is removed.
        OSError: if `out` is a file, or a folder cannot be read or written.
        ValueError, OSError: from peft, if there is no base model, or if a merged weight is not
            finite.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty. Empty it, or choose another folder with --out.")
    check_model_folder(folder)
    if not (folder / ADAPTER_CONFIG).is_file():
        raise ValueError(
            f"the folder {folder} has no {ADAPTER_CONFIG}. Choose the folder of an adapter with "
            "--model: the output_dir of a LoRA run, or one of its checkpoints."
        )
    from peft import AutoPeftModelForCausalLM, PeftConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = PeftConfig.from_pretrained(str(folder)).base_model_name_or_path
    if base is not None:
        check_model_folder(Path(base))
    model = AutoPeftModelForCausalLM.from_pretrained(
        folder, dtype=dtype, trust_remote_code=trust_remote_code
    )
    adapter = model.peft_config["default"]
    expected_logps = probe_logps(model)
    model.merge_and_unload(safe_merge=True).save_pretrained(out)
    del model  # two large models may not fit into memory
    merged = AutoModelForCausalLM.from_pretrained(
        out, dtype="auto", trust_remote_code=trust_remote_code
    )
    difference = (probe_logps(merged) - expected_logps).abs().max().item()
    limit = FLOAT32_LIMIT if merged.dtype.itemsize == 4 else HALF_LIMIT
    if not difference <= limit:  # also true for NaN
        shutil.rmtree(out)
        raise ValueError(
            f"log-probs of the merged model would differ by up to {difference:.3g} from those of "
            "the base with its adapter. The cause is usually an adapter on weights that the base "
            "uses twice, such as a tied output head. Use the adapter without merging it."
        )
    name = adapter.base_model_name_or_path
    revision = adapter.revision
    if (folder / "tokenizer_config.json").is_file():
        name = str(folder)
        revision = None
    AutoTokenizer.from_pretrained(
        name, revision=revision, trust_remote_code=trust_remote_code
    ).save_pretrained(out)
    return difference


def probe_logps(model: PreTrainedModel) -> Tensor:
    """Return a model's float32 log-probs, (T, V), on a fixed sequence of T random tokens.

    The model is left in eval mode.
    """
    import torch

    vocab_size = model.get_input_embeddings().get_parameter("weight").shape[0]
    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(vocab_size, (1, 32), generator=generator)  # (1, T)
    with torch.no_grad():
        logits = model.eval()(input_ids).logits[0].float()  # (T, V)
    return logits.log_softmax(-1)
