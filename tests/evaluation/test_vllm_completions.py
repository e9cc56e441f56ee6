"""Which engine completes the prompts of an evaluation."""

from __future__ import annotations

import pytest

from grpo_ext.evaluation import vllm_completions


def test_vllm_is_taken_where_it_is_and_can_load_the_model(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm_completions, "find_spec", lambda name: object())
    monkeypatch.setattr(vllm_completions, "gpu_is_there", lambda: True)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    assert vllm_completions.pick_engine("auto", "some/model") == "vllm"
    assert vllm_completions.pick_engine("auto", "some/model", use_cpu=True) == "transformers"
    assert vllm_completions.pick_engine("auto", str(adapter)) == "transformers"
    assert vllm_completions.pick_engine("auto", "some/model", environment="guess") == "transformers"
    assert vllm_completions.pick_engine("transformers", "some/model") == "transformers"
    with pytest.raises(ValueError, match="cannot play the episodes"):
        vllm_completions.pick_engine("vllm", "some/model", environment="guess")
    with pytest.raises(ValueError, match="is an adapter"):
        vllm_completions.pick_engine("vllm", str(adapter))
    monkeypatch.setattr(vllm_completions, "gpu_is_there", lambda: False)
    assert vllm_completions.pick_engine("auto", "some/model") == "transformers"
    assert vllm_completions.pick_engine("vllm", "some/model") == "vllm"
    monkeypatch.setattr(vllm_completions, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install vllm"):
        vllm_completions.pick_engine("vllm", "some/model")
