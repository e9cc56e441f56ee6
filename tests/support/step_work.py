"""The generation batches that `step.py` trains on, and trainers that take them as samples."""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from trl import GRPOTrainer

from benchmarks.gpu.attention import use_torch_flash
from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.demo.smollm2 import save_smollm2

FIRST_WORD = 8  # smaller ids are special


@dataclass(frozen=True)
class Case:
    """One kind of work.

    Args:
        rows: completions per optimizer step, on all ranks.
        micro_batch: rows of one of TRL's micro-batches.
        group: completions per prompt.
        prompt: tokens of the shortest and longest prompt. completion: mean, spread (of the
        logarithm, 0 for equal lengths) and maximum of the completions' lengths. dead: share of
        groups whose completions all get the same reward. vocab, layers, hidden: of the Llama model,
        untrained. settings: of the trainer. lora: whether only an adapter is trained. bound: the
        least ratio of TRL's time to ours that passes; `None` for no bound. most: the largest
        multiple of the lower bound that passes, of our fastest run; `None` for any. dtype: of the
        weights. on_gpu: whether it runs on a GPU. flash: whether it attends by torch's kernels of
        FlashAttention (`benchmarks.gpu.attention`). pretrained: whether the model is
        SmolLM2-135M-Instruct; `layers` and `hidden` are then its own. layer_weights: the matrix
        entries of a layer. trl_settings: of TRL's trainer, where they differ from `settings`.
        tolerance: the largest difference of the gradients that passes, relative to their largest
        entry.
    """

    rows: int
    micro_batch: int
    group: int
    prompt: tuple[int, int]
    completion: tuple[float, float, int]
    dead: float
    vocab: int
    layers: int = 2
    hidden: int = 128
    settings: tuple[tuple[str, Any], ...] = ()
    lora: bool = False
    bound: float | None = None
    most: float | None = None
    dtype: torch.dtype = torch.float32
    on_gpu: bool = False
    flash: bool = False
    pretrained: bool = False
    layer_weights: int | None = None
    trl_settings: tuple[tuple[str, Any], ...] = ()
    tolerance: float = 1e-5


COUNTDOWN = Case(256, 256, 8, (34, 38), (44, 0.35, 72), 0.25, 340, bound=2.5, most=3.0)
UNEVEN = Case(64, 8, 8, (150, 150), (350, 0.6, 1024), 0.25, 32_000, layers=4, bound=5.0)
SHORT = replace(
    UNEVEN, rows=32, completion=(120, 0.6, 350), vocab=2000, bound=None
)  # for many variants
CASES: dict[str, Case] = {
    "countdown": COUNTDOWN,
    "uneven": UNEVEN,
    "long prompts": Case(
        16, 8, 8, (1024, 1024), (128, 0.0, 128), 0.0, 32_000, layers=4, bound=4.0, most=3.5
    ),
    "equal, all live": Case(64, 64, 8, (16, 16), (128, 0.0, 128), 0.0, 340, bound=0.97),
    "uneven, short": replace(SHORT, most=4.0),
    **{
        f"uneven, short, {share:.0%} dead": replace(SHORT, dead=share) for share in (0.0, 0.5, 0.75)
    },
    "uneven, short, beta .04": replace(SHORT, settings=(("beta", 0.04),)),
    "uneven, short, packed": replace(SHORT, settings=(("layout", "packed"),)),
    "countdown, beta .04": replace(COUNTDOWN, settings=(("beta", 0.04),), bound=None, most=None),
    "countdown, 2 iterations": replace(
        COUNTDOWN, settings=(("num_iterations", 2),), bound=None, most=None
    ),
    "countdown, LoRA": replace(COUNTDOWN, lora=True, bound=None, most=None),
    "countdown, checkpointing": replace(
        COUNTDOWN, settings=(("gradient_checkpointing", True),), bound=None, most=None
    ),
}

SMOLLM2 = Case(
    rows=32,
    micro_batch=16,
    group=8,
    prompt=(40, 48),
    completion=(44, 0.35, 64),
    dead=0.25,
    vocab=49_152,
    layers=30,
    hidden=576,
    settings=(("gradient_checkpointing", None),),
    trl_settings=(("gradient_checkpointing", True),),
    lora=True,
    dtype=torch.bfloat16,
    pretrained=True,
    layer_weights=2 * 576 * (576 + 192) + 3 * 576 * 1536,
    # both sides round in bfloat16: from the gradient in float32, TRL's differs by 0.6, ours by 0.2
    tolerance=1.0,
)
SMOLLM2_UNEVEN = replace(SMOLLM2, rows=16, micro_batch=8, completion=(170, 0.6, 512))
# cases of a pretrained model: TRL's defaults against ours, then both without checkpointing, and
# both with it
CHECKPOINTING = {
    "": {},
    ", no checkpointing": {"gradient_checkpointing": False},
    ", checkpointing": {"gradient_checkpointing": True},
}
for _length, _case in (("64 tokens", SMOLLM2), ("uneven, 512", SMOLLM2_UNEVEN)):
    for _mode, _settings in CHECKPOINTING.items():
        _both = tuple(_settings.items())
        CASES[f"SmolLM2, {_length}, LoRA{_mode}"] = replace(
            _case,
            settings=_both or _case.settings,
            trl_settings=_both or _case.trl_settings,
        )
    _exact = replace(_case, dtype=torch.float32, tolerance=1e-4)
    CASES[f"SmolLM2, {_length}, LoRA, float32"] = _exact
    CASES[f"SmolLM2, {_length}, full"] = replace(_case, lora=False)
    CASES[f"SmolLM2, {_length}, full, float32"] = replace(_exact, lora=False)


@dataclass(frozen=True)
class Work:
    """A case's prompts, completions and rewards; completion i of group g is at g * group + i."""

    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: list[float]


def make_work(case: Case) -> Work:
    """Make the work of a case, the same in every call."""
    g = torch.Generator().manual_seed(1)
    mean, spread, longest = case.completion
    noise = torch.randn(case.rows, generator=g) * spread - spread**2 / 2
    lengths = (mean * noise.exp()).round().clamp(4, longest).int().tolist()

    def words(count: int) -> list[int]:
        return torch.randint(FIRST_WORD, case.vocab, (count,), generator=g).tolist()

    groups = case.rows // case.group
    low, high = case.prompt
    sizes = torch.randint(low, high + 1, (groups,), generator=g).tolist()
    prompts = [[FIRST_WORD + n, *words(size - 1)] for n, size in enumerate(sizes)]
    rewards = (torch.rand(groups, case.group, generator=g) < 0.5).float()
    rewards[:, 0], rewards[:, 1] = 0.0, 1.0
    rewards[torch.randperm(groups, generator=g)[: round(case.dead * groups)]] = 1.0
    return Work(
        prompts, [[*words(length - 1), 1] for length in lengths], rewards.flatten().tolist()
    )


class FixedCompletions(GRPOTrainer):
    """Replaces sampling by the completions of a `Work`."""

    model: Any  # TRL's types of these two allow None
    num_generations: int
    work: Work

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any
    ) -> tuple[list[list[int]], None]:
        seen: Counter[int] = Counter()
        out = []
        for prompt in prompt_ids:
            number = prompt[0] - FIRST_WORD
            out.append(list(self.work.completions[number * self.num_generations + seen[number]]))
            seen[number] += 1
        return out, None


class Ours(FixedCompletions, GRPOExtTrainer):
    """Our trainer; without sampling, no sampler is watched."""


def make_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per word."""
    words = {"<pad>": 0, "<eos>": 1} | {f"w{n}": n for n in range(2, vocab)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def make_model(case: Case) -> LlamaForCausalLM:
    """Make an untrained model, the same in every call, or load the pretrained one."""
    torch.manual_seed(0)  # also of an adapter
    if case.pretrained:
        with tempfile.TemporaryDirectory() as folder:
            save_smollm2(Path(folder))
            model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(folder)
            return model.float()
    config = LlamaConfig(
        vocab_size=case.vocab,
        hidden_size=case.hidden,
        intermediate_size=3 * case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=4,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def make_trainer(
    side: str, case: Case, out: str, ranks: int = 1, model: PreTrainedModel | None = None
) -> FixedCompletions:
    """Make TRL's trainer or ours, on a copy of `model` (default: `make_model`)."""
    tokenizer = make_tokenizer(case.vocab)
    work = make_work(case)
    own: Any
    if model is None or dict(case.settings).get("beta"):  # the reference is loaded from a folder
        model = model or make_model(case)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(f"{out}/model")
        # each rank writes its own copy; the model's save_pretrained would write only the first
        # rank's
        save_model(model, f"{out}/model/model.safetensors", {"format": "pt"})
        own = AutoModelForCausalLM.from_pretrained(f"{out}/model", dtype=case.dtype)
    else:
        own = copy.deepcopy(model)
        own.to(dtype=case.dtype)
    given: Counter[int] = Counter()

    def fixed(
        prompts: Any, completions: Any, number: list[int], **kwargs: Any
    ) -> list[float | None]:
        scores: list[float | None] = []
        for n in number:
            scores.append(work.rewards[n * case.group + given[n] % case.group])
            given[n] += 1
        return scores

    own_settings = dict(case.trl_settings) if side == "TRL" else {}
    args = GRPOExtConfig(
        output_dir=out,
        per_device_train_batch_size=case.micro_batch // ranks,
        gradient_accumulation_steps=case.rows // case.micro_batch,
        num_generations=case.group,
        max_completion_length=case.completion[2],
        shuffle_dataset=False,
        report_to="none",
        save_strategy="no",
        use_cpu=not case.on_gpu,
        bf16=False,
        **{"gradient_checkpointing": False, **dict(case.settings), **own_settings},
    )
    texts = [" ".join(f"w{i}" for i in prompt) for prompt in work.prompts]
    trainer = (Ours if side == "ours" else FixedCompletions)(
        model=use_torch_flash(own) if case.flash else own,
        reward_funcs=[fixed],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": texts, "number": list(range(len(texts)))}),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules="all-linear", init_lora_weights="gaussian")
        if case.lora
        else None,
    )
    trainer.work = work
    return trainer
