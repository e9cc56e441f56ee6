"""Tiny models: sizes, seeds, saving.

The optimizer's groups, schedule and checkpoint; a warm start that learns.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import get_scheduler

from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import countdown_demonstrations
from grpo_ext.tiny.model import build_model, compose_numbers
from grpo_ext.tiny.optimizer import MuonWithAdamW
from grpo_ext.tiny.tokenizer import NUMBERS, build_tokenizer
from tests.support.logs import metric_values

TOKENIZER = build_tokenizer(["Make 13 from 1, 5, 7."], pattern=NUMBERS)
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_models_have_the_architecture_and_survive_saving(architecture: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = build_model(TOKENIZER, architecture=architecture, **SMALL).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([TOKENIZER("Make 13 from 1, 5, 7.").input_ids])
    assert loaded.config.model_type == architecture
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert model(ids).logits.shape == (1, ids.shape[1], len(TOKENIZER))
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_unknown_shape_is_refused() -> None:
    with pytest.raises(TypeError, match=r"hiden_size.*hidden_size"):
        build_model(TOKENIZER, hiden_size=32)


def test_weights_follow_the_seed_and_leave_the_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build_model(TOKENIZER, seed=1, **SMALL)
    assert torch.equal(torch.rand(3), expected)
    same = build_model(TOKENIZER, seed=1, **SMALL)
    other = build_model(TOKENIZER, seed=2, **SMALL)
    pairs = zip(first.parameters(), same.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_numbers_can_begin_as_sums_of_their_digits() -> None:
    tokenizer = build_tokenizer([f"{n} + {n}" for n in range(100)], pattern=NUMBERS)
    model, plain = (build_model(tokenizer, seed=3) for _ in range(2))
    before = torch.random.get_rng_state()
    compose_numbers(model, tokenizer, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    weight, former = (one.get_input_embeddings().weight.detach() for one in (model, plain))
    row = {n: tokenizer(str(n)).input_ids for n in range(100)}
    assert all(len(ids) == 1 for ids in row.values())
    for a, b in ((30, 40), (0, 90), (10, 20)):  # a step from 2 to 7 is the same in every ten
        steps = [weight[row[ten + 7][0]] - weight[row[ten + 2][0]] for ten in (a, b)]
        torch.testing.assert_close(*steps)
        assert steps[0].norm() > 0.1
    others = sorted(set(range(len(tokenizer))) - {ids[0] for ids in row.values()})
    assert torch.equal(weight[others], former[others])
    numbers = weight[[ids[0] for ids in row.values()]]
    assert 0.8 < numbers.std() / former.std() < 1.2


def test_optimizer_gives_matrices_to_muon_and_the_rest_to_adamw() -> None:
    model = build_model(TOKENIZER, **SMALL)
    optimizer = MuonWithAdamW(model, lr=1e-3)
    matrices, others = (group["params"] for group in optimizer.param_groups)
    assert len(matrices) == 2 * 7 and all(
        p.ndim == 2 and len(TOKENIZER) not in p.shape for p in matrices
    )
    assert any(p is model.lm_head.weight for p in others)
    assert len(matrices) + len(others) == len(list(model.parameters()))


def train(model, optimizer, steps: range, schedule=None) -> None:
    for step in steps:
        ids = torch.randint(
            0, len(TOKENIZER), (2, 8), generator=torch.Generator().manual_seed(step)
        )
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()


def test_optimizer_equals_its_two_parts() -> None:
    """AdamW's half to the bit.

    Muon's up to sums in another order, which rounding to bfloat16 may enlarge.
    """
    ours = build_model(TOKENIZER, **SMALL)
    theirs = build_model(TOKENIZER, **SMALL)
    before = dict(build_model(TOKENIZER, **SMALL).named_parameters())
    train(ours, MuonWithAdamW(ours, lr=1e-2, weight_decay=0.1), range(1))
    named = dict(theirs.named_parameters())
    matrices = [p for name, p in named.items() if "proj" in name]
    others = [p for name, p in named.items() if "proj" not in name]
    muon = torch.optim.Muon(
        matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=1e-2, weight_decay=0.0, betas=(0.9, 0.95))
    train(
        theirs, muon, range(1)
    )  # zero_grad of muon leaves the gradients of the other half in place
    adamw.step()
    for name, found in ours.named_parameters():
        if "proj" in name:
            moved = found - before[name]
            expected = named[name] - before[name]
            assert (moved - expected).norm() < 0.03 * expected.norm() and expected.norm() > 0
        else:
            assert torch.equal(found, named[name])


def test_schedules_find_the_learning_rate() -> None:
    model = build_model(TOKENIZER, **SMALL)
    more = {"num_warmup_steps": 1, "num_training_steps": 4}
    schedule = get_scheduler("polynomial", MuonWithAdamW(model, lr=1e-3), **more)
    assert schedule.get_last_lr() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9)])
def test_muon_follows_its_formula(shape: tuple[int, int]) -> None:
    """Momentum of Nesterov, the polynomial on the singular values, decay and scale.

    Float64, by a decomposition.
    """
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(*shape[::-1], bias=False)
    start = layer.weight.detach().double().clone()
    grads = [torch.randn(shape, generator=generator) for _ in range(3)]
    optimizer = MuonWithAdamW(
        torch.nn.Sequential(layer, torch.nn.LayerNorm(2)), lr=0.1, weight_decay=0.5
    )
    expected = start
    momentum = torch.zeros(shape, dtype=torch.float64)
    for grad in grads:
        layer.weight.grad = grad.clone()
        optimizer.step()
        momentum = 0.95 * momentum + 0.05 * grad.double()
        u, s, v = torch.linalg.svd(0.95 * momentum + 0.05 * grad.double(), full_matrices=False)
        s = s / s.norm()
        for _ in range(5):
            s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * 0.2 * max(shape) ** 0.5 * (u * s) @ v
    moved = layer.weight.double() - start
    expected = expected - start
    assert (moved - expected).norm() < 0.06 * expected.norm()  # every result is rounded to bfloat16


def test_optimizer_resumes_bit_for_bit_under_a_schedule(tmp_path: Path) -> None:
    def start():
        model = build_model(TOKENIZER, **SMALL)
        optimizer = MuonWithAdamW(model, lr=1e-2)
        return (
            model,
            optimizer,
            torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=6),
        )

    straight, optimizer, schedule = start()
    train(straight, optimizer, range(6), schedule)

    model, optimizer, schedule = start()
    train(model, optimizer, range(3), schedule)
    torch.save(
        [model.state_dict(), optimizer.state_dict(), schedule.state_dict()], tmp_path / "state.pt"
    )
    resumed, optimizer, schedule = start()
    for part, state in zip(
        (resumed, optimizer, schedule), torch.load(tmp_path / "state.pt"), strict=True
    ):
        part.load_state_dict(state)
    train(resumed, optimizer, range(3, 6), schedule)
    for a, b in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_warm_start_through_trl_learns_the_form(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    task = Countdown(
        min_numbers=3,
        max_numbers=3,
        max_number=9,
        operators="+-",
        max_target=27,
        system_prompt="",
        user_prompt="Make {target} from {nums}.",
    )
    rows = list(countdown_demonstrations(task, 600))
    tokenizer = build_tokenizer(
        [m["content"] for row in rows for part in row.values() for m in part], pattern=NUMBERS
    )
    args = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=40,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=10,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        lr_scheduler_type="linear",
    )
    model = build_model(
        tokenizer,
        architecture="qwen3",
        initializer_range=0.04,
        hidden_size=64,
        intermediate_size=128,
    )
    trainer = SFTTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        optimizer_cls_and_kwargs=(lambda: MuonWithAdamW, {"lr": args.learning_rate}),
    )
    trainer.train()
    assert isinstance(trainer.optimizer.optimizer, MuonWithAdamW)
    losses = metric_values(trainer, "loss")
    assert losses[-1] < 0.5 * losses[0]
    prompt = tokenizer.apply_chat_template(
        task.prompt({"nums": [3, 5, 1], "target": 7}),
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.eval().generate(**prompt, max_new_tokens=64, do_sample=False)[
        0, prompt["input_ids"].shape[1] :
    ]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text.startswith("<think>\n") and text.endswith("\n</answer>"), text
