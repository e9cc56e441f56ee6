"""The rate of matrix products: the fastest measurement counts, and no share of it exceeds 1."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig

from grpo_ext.common import matrix_rate as module
from grpo_ext.common.matrix_rate import MEASUREMENTS, MatrixRate, matrix_rate_of
from tests.support.logs import entries_with
from tests.support.tiny_run import tiny_arguments, tiny_trainer

OPERATIONS = 2 * 1000 * 64 * 128  # of one product


def rate_with(monkeypatch, seconds):
    """A rate whose products take these seconds, one value for each measurement."""
    each = iter(seconds)
    monkeypatch.setattr(module, "SECONDS", 0.0)
    monkeypatch.setattr(module, "PRODUCTS", 1)
    monkeypatch.setattr(module, "product_seconds", lambda a, b: next(each))
    return MatrixRate("cpu", torch.float32, 64, 128)


def test_a_measurement_in_a_busy_moment_does_not_last(monkeypatch):
    rate = rate_with(monkeypatch, [1.0, 0.01, 0.02])
    assert rate.share(0.5 * OPERATIONS, 1000) == pytest.approx(0.5)
    assert rate.share(0.5 * OPERATIONS, 1000) == pytest.approx(0.005)
    assert rate.share(50 * OPERATIONS, 1000) == pytest.approx(0.5)
    assert rate.share(50 * OPERATIONS, 1000) == pytest.approx(0.5)  # not measured again


def test_a_share_above_1_is_measured_again(monkeypatch):
    rate = rate_with(monkeypatch, [1.0] * MEASUREMENTS + [0.25])
    for _ in range(MEASUREMENTS):
        rate.share(0.1 * OPERATIONS, 1000)
    assert rate.share(2 * OPERATIONS, 1000) == pytest.approx(0.5)
    assert rate.share(1 * OPERATIONS, 1000) == pytest.approx(0.25)


def test_training_that_is_faster_than_all_measurements_is_the_fastest_one(monkeypatch):
    rate = rate_with(monkeypatch, [1.0] * 9)
    assert rate.share(3 * OPERATIONS, 1000) == 1
    assert rate.share(1.5 * OPERATIONS, 1000) == pytest.approx(0.5)


def test_products_have_the_shapes_of_the_model_and_the_tokens_of_a_micro_batch(monkeypatch):
    shapes = []

    def product_seconds(a, b):
        shapes.append((a.shape, b.shape, a.dtype))
        return 1.0

    monkeypatch.setattr(module, "product_seconds", product_seconds)
    config = LlamaConfig(hidden_size=64, intermediate_size=80)
    rate = matrix_rate_of(SimpleNamespace(config=config), "cpu", torch.bfloat16)
    random_state = torch.get_rng_state()
    for tokens in (700, 10**9):
        rate.share(1.0, tokens)
    assert {shape for shape in shapes} == {
        ((700, 64), (80, 64), torch.bfloat16),
        ((module.MOST_ROWS["cpu"], 64), (80, 64), torch.bfloat16),
    }
    assert torch.equal(torch.get_rng_state(), random_state)
    assert rate is matrix_rate_of(SimpleNamespace(config=config), "cpu", torch.bfloat16)


def test_no_share_of_a_run_exceeds_1_after_a_slow_first_measurement(
    tiny_folder, tmp_path, monkeypatch
):
    products = []

    def product_seconds(a, b):
        products.append(a)
        return 1000.0 if len(products) <= module.PRODUCTS else 1e-9

    monkeypatch.setattr(module, "product_seconds", product_seconds)
    monkeypatch.setattr(module, "SECONDS", 0.0)
    module.matrix_rate.cache_clear()

    def reward(completions, **columns):
        return [float(i % 2) for i in range(len(completions))]

    rows = Dataset.from_list([{"prompt": f"Use {a}, 2, 3 to make 9."} for a in range(1, 9)])
    trainer = tiny_trainer(tiny_folder, [reward], tiny_arguments(tmp_path, max_steps=2), rows)
    trainer.train()
    module.matrix_rate.cache_clear()
    first, second = (log["throughput/share_of_rate"] for log in entries_with(trainer, "loss"))
    assert first == 1  # the tiny model is faster than one product in 1,000 seconds
    assert 0 < second < 1e-3
