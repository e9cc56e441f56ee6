"""Which engine completes the prompts of an evaluation."""

from __future__ import annotations

import pytest

from grpo_ext.evaluation import engine


def test_vllm_is_taken_where_it_is_and_can_load_the_model(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "find_spec", lambda name: object())
    monkeypatch.setattr(engine, "gpu_is_there", lambda: True)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    assert engine.pick_engine("auto", "some/model") == "vllm"
    assert engine.pick_engine("auto", "some/model", use_cpu=True) == "transformers"
    assert engine.pick_engine("auto", str(adapter)) == "transformers"
    assert engine.pick_engine("transformers", "some/model") == "transformers"
    with pytest.raises(ValueError, match="is an adapter"):
        engine.pick_engine("vllm", str(adapter))
    monkeypatch.setattr(engine, "gpu_is_there", lambda: False)
    assert engine.pick_engine("auto", "some/model") == "transformers"
    assert engine.pick_engine("vllm", "some/model") == "vllm"
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install vllm"):
        engine.pick_engine("vllm", "some/model")
