"""An adapter merged into its base.

The merged model is base and adapter to rounding, and what cannot be merged is told.
"""

from __future__ import annotations

import json
from shutil import copytree, ignore_patterns

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.cli.main import main
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.tasks.countdown import Countdown
from tests.support.tiny_run import tiny_arguments

TOKENS = torch.arange(40).reshape(2, 20)


def logits(model):
    """Logits (2, 20, V) over tokens that no merge has looked at."""
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def spread(completions, **_):
    return [sum(map(ord, c[-1]["content"])) % 17 / 16 for c in completions]


@pytest.fixture(scope="module")
def adapter_folder(tiny_folder, tmp_path_factory):
    """What three steps with an adapter leave in `output_dir`."""
    folder = tmp_path_factory.mktemp("adapter")
    args = tiny_arguments(
        folder,
        logging_steps=10,
        max_steps=3,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        max_completion_length=12,
    )
    torch.manual_seed(0)
    lora = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    rows = Countdown(
        num_problems=32, max_numbers=3, max_number=9, operators="+-", max_target=30
    ).dataset("train")
    trainer = GRPOExtTrainer(str(tiny_folder), [spread], args, rows, peft_config=lora)
    trainer.train()
    trainer.save_model()
    return folder


def same_as_base_and_adapter(merged_folder, adapter_folder, base_folder):
    """The merged model read by plain transformers.

    It is what the adapter makes of its base, and not the base.
    """
    assert not (merged_folder / "adapter_config.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(merged_folder)
    assert not hasattr(merged, "peft_config")
    found = logits(merged)
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    torch.testing.assert_close(
        found, logits(AutoPeftModelForCausalLM.from_pretrained(adapter_folder)), atol=1e-5, rtol=0
    )
    assert (found - logits(base)).abs().max() > 1e-2
    tokenizer, own = (
        AutoTokenizer.from_pretrained(folder) for folder in (merged_folder, base_folder)
    )
    chat = [{"role": "user", "content": "Use 3, 7, 12 to make 16."}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == own.apply_chat_template(
        chat, tokenize=False
    )
    assert tokenizer.get_vocab() == own.get_vocab()


def test_the_command_merges_what_training_left(tiny_folder, adapter_folder, capsys):
    assert main(["merge", "--model", str(adapter_folder)]) == 0
    said = capsys.readouterr().out
    assert (
        "differ from those of the base model with the adapter by at most" in said
        and float(said.split()[-1].rstrip(".")) <= 1e-5
    )
    same_as_base_and_adapter(adapter_folder / "merged", adapter_folder, tiny_folder)
    assert main(["merge", "--model", str(adapter_folder)]) == 2
    assert "merged is not empty" in capsys.readouterr().err


def test_an_adapter_is_refused_as_a_model_with_the_command_that_merges_it(
    tiny_folder, adapter_folder, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "adapter"
    copytree(adapter_folder, folder, ignore=ignore_patterns("merged"))
    monkeypatch.chdir(tmp_path)
    recipe = {"output_dir": "out", "num_generations": 4, "max_completion_length": 8}

    def told(name):
        findings = check_recipe(None, {**recipe, "model_name_or_path": str(name)})
        return [p.message for p in findings.problems if p.key == "model_name_or_path"]

    command = f"grpo-ext merge --model {folder}"
    advice = (
        f"holds an adapter, not a complete model: run `{command}`, and use {folder}/merged instead."
    )
    assert told(folder) == [f"model_name_or_path: the folder {folder} {advice}"]
    with pytest.raises(ValueError, match="holds an adapter, not a complete model") as error:
        GRPOExtTrainer(str(folder), [spread], GRPOExtConfig("x", use_cpu=True, bf16=False), [])
    assert command in str(error.value)
    assert main(command.split()[1:]) == 0
    assert told(folder / "merged") == []
    assert told(folder) == [
        f"model_name_or_path: the folder {folder} holds an adapter, not a complete model: "
        f"use {folder}/merged, the complete model that `grpo-ext merge` has made from it."
    ]
    assert told(tiny_folder) == []


def test_half_types_are_asked_for(adapter_folder, tmp_path, capsys):
    assert (
        main(
            [
                "merge",
                "--model",
                str(adapter_folder),
                "--out",
                str(tmp_path / "half"),
                "--dtype",
                "bfloat16",
            ]
        )
        == 0
    )
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert half.dtype == torch.bfloat16
    whole = logits(AutoPeftModelForCausalLM.from_pretrained(adapter_folder))
    assert 0 < (logits(half).float() - whole).abs().max() < 0.2


def test_what_cannot_be_merged_is_told(tiny_folder, adapter_folder, tmp_path, capsys):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (moved / name).write_bytes((adapter_folder / name).read_bytes())
    config = json.loads((moved / "adapter_config.json").read_text())
    (moved / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "runs/gone/warm_start"})
    )
    for folder, words in {
        tmp_path / "none": f"the folder {tmp_path / 'none'} has no adapter_config.json",
        tiny_folder: f"the folder {tiny_folder} has no adapter_config.json",
        moved: "runs/gone/warm_start",
    }.items():
        assert main(["merge", "--model", str(folder), "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert words in said and "Traceback" not in said, said
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_a_tied_head_is_refused(tiny_folder, tmp_path, capsys):
    """The head is the embedding.

    With the adapter in its weight, tokens would be read differently, too.
    """
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    assert base.config.tie_word_embeddings
    torch.manual_seed(0)
    model = get_peft_model(
        base,
        LoraConfig(r=4, target_modules=["lm_head"], task_type="CAUSAL_LM", init_lora_weights=False),
    )
    model.save_pretrained(tmp_path / "head")
    assert main(["merge", "--model", str(tmp_path / "head")]) == 2
    assert "log-probs of the merged model would differ by up to" in capsys.readouterr().err
    assert not (tmp_path / "head" / "merged").exists()
