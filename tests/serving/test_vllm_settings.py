"""What a vLLM server is started with, and which GPUs are whose; no vLLM is needed for it."""

from __future__ import annotations

import pytest

from grpo_ext import GRPOExtConfig, load_recipe
from grpo_ext.cli.main import main
from grpo_ext.recipe.arguments import check_arguments
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.vllm import server
from grpo_ext.vllm.server import check_reach
from grpo_ext.vllm.settings import MIB, TextModel, cpu_settings, server_command, vllm_dtype
from grpo_ext.vllm.signature import KEY

SMALL = TextModel(num_hidden_layers=2, kv_heads=2, head_size=32, longest=512, dtype="float32")
SERVER = {
    "model_name_or_path": "m",
    "use_vllm": True,
    "vllm_mode": "server",
    "max_completion_length": 16,
}


def flags(model, **options) -> dict[str, str]:
    words = server_command(load_recipe(None, {**SERVER, **options}).flat, model, completions=64)
    assert words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    pairs = {}
    for word, following in zip(words[3:], [*words[4:], "--"], strict=True):
        if word.startswith("--"):
            pairs[word[2:]] = "" if following.startswith("--") else following
    return pairs


@pytest.mark.parametrize(
    "weights, bf16, fp16, engine",
    [
        ("float32", False, False, "float32"),
        ("float32", True, False, "bfloat16"),
        ("float32", False, True, "float16"),
        ("bfloat16", False, False, "bfloat16"),
        ("bfloat16", True, False, "bfloat16"),
    ],
)
def test_the_engine_computes_in_what_the_trainer_does(weights, bf16, fp16, engine):
    assert vllm_dtype(weights, bf16, fp16) == engine


def test_cache_has_room_for_one_sequence_and_bounds():
    block = 128 * 2 * 2 * 64 * 4  # tokens x keys and values x layers x width x bytes
    assert SMALL.cache_bytes("float32", 1, 512) == 64 * MIB
    assert SMALL.cache_bytes("float32", 1000, 512) == 1000 * 5 * block
    assert SMALL.cache_bytes("bfloat16", 1000, 512) == 1000 * 5 * block // 2
    large = TextModel(64, 8, 128, 131072, "bfloat16")
    assert large.cache_bytes("bfloat16", 256, 4096) == 4096 * MIB
    assert (
        large.cache_bytes("bfloat16", 1, 131072) > 4096 * MIB
    )  # vLLM refuses a cache without room for one


def test_heads_that_vllm_has_no_kernel_for_are_refused():
    with pytest.raises(ValueError, match=r"of this model have size 16\. Set `use_vllm: false`"):
        cpu_settings(TextModel(2, 4, 16, 512, "float32"), "float32", 8, 256)


def test_server_on_a_cpu():
    given = flags(SMALL, use_cpu=True, bf16=False, vllm_server_port=8123, vllm_max_model_length=256)
    assert given["dtype"] == "float32" and "enforce-eager" in given
    assert int(given["kv-cache-memory-bytes"]) == 64 * MIB
    assert (given["host"], given["port"], given["max-model-len"]) == ("127.0.0.1", "8123", "256")
    assert given["logprobs-mode"] == "processed_logprobs"
    assert given["weight-transfer-config"] == '{"backend": "gloo"}'
    assert flags(SMALL, use_cpu=True, fp16=True)["dtype"] == "float32"


def test_server_on_gpus():
    given = flags(
        None,
        dtype="bfloat16",
        vllm_tensor_parallel_size=2,
        vllm_server_base_url="http://node2:9000/",
    )
    assert (given["host"], given["port"], given["tensor-parallel-size"]) == ("node2", "9000", "2")
    assert given["dtype"] == "bfloat16" and given["weight-transfer-config"] == '{"backend": "nccl"}'
    assert (
        not {"kv-cache-memory-bytes", "enforce-eager", "revision", "trust-remote-code"}
        & given.keys()
    )


def test_serve_prints_its_command(tiny_folder, tmp_path, capsys):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"model_name_or_path: {tiny_folder}\nuse_vllm: true\nuse_cpu: true\nbf16: false\n"
    )
    assert main(["serve", "--config", str(recipe)]) == 2
    assert "Set `use_vllm: true` and `vllm_mode: server`" in capsys.readouterr().err
    assert main(["serve", "--config", str(recipe), "--vllm_mode", "server", "--dry_run"]) == 2
    assert "of this model have size 16" in capsys.readouterr().err


def test_gpus_of_server_and_trainers(monkeypatch):
    monkeypatch.setattr(server, "gpu_is_there", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    recipe = load_recipe(None, {**SERVER, "vllm_server_devices": "2, 3"})
    assert server.trainer_devices(recipe) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert server.server_of(recipe).environment["CUDA_VISIBLE_DEVICES"] == "2, 3"
    for wrong in (None, "0,1,2,3"):
        with pytest.raises(ValueError, match="at least one of the GPUs 0, 1, 2, 3"):
            server.trainer_devices(load_recipe(None, {**SERVER, "vllm_server_devices": wrong}))


def test_server_that_is_given_adapters():
    alone = {"use_peft": True, "lora_r": 40, "vllm_sync_adapter": "adapter"}
    given = flags(SMALL, use_cpu=True, **alone)
    assert (given["enable-lora"], given["max-loras"], given["max-lora-rank"]) == ("", "1", "64")
    assert "weight-transfer-config" not in given
    assert "enable-lora" not in flags(SMALL, use_cpu=True, use_peft=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
@pytest.mark.parametrize("key", [None, "secret"])
def test_a_server_of_this_machine_needs_no_key(host, key, monkeypatch):
    monkeypatch.setenv(KEY, key) if key else monkeypatch.delenv(KEY, raising=False)
    check_reach(f"http://[{host}]:8000" if ":" in host else f"http://{host}:8000")
    assert flags(None, vllm_server_port=8123).get("middleware") == (
        "grpo_ext.vllm.guard.Guard" if key else None
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.9", "node2", "localhost.example.org", "[::]"])
def test_a_server_that_others_reach_needs_a_key(host, monkeypatch, caplog):
    recipe = load_recipe(None, {**SERVER, "vllm_server_base_url": f"http://{host}:8000"})
    monkeypatch.setattr(server, "gpu_is_there", lambda: True)
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ValueError, match=rf"Set {KEY} .* or use 127.0.0.1 as the host"):
        server.server_of(recipe)
    monkeypatch.setenv(KEY, "secret")
    made = server.server_of(recipe)
    assert (
        "will listen on" in caplog.text
        and "secret" not in " ".join(made.command)
        and "--middleware" in made.command
    )
    assert made.environment[KEY] == "secret"


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("vllm_server_base_url", "http://user:hunter2@node2:8000"),
        ("vllm_server_base_url", "http://hunter2@node2:8000"),
        ("vllm_server_base_url", "http://node2:8000?key=hunter2"),
        ("vllm_server_base_url", "user:hunter2@node2:8000"),
        ("vllm_server_host", "user:hunter2@node2"),
    ],
)
def test_an_address_with_credentials_is_refused_by_name(key, address, tmp_path):
    with pytest.raises(RecipeError) as refused:
        load_recipe(None, {**SERVER, key: address})
    assert [problem.key for problem in refused.value.problems] == [key]
    assert "hunter2" not in str(refused.value)
    with pytest.raises(RecipeError, match=key) as refused:
        check_arguments(GRPOExtConfig(str(tmp_path), use_cpu=True, bf16=False, **{key: address}), 1)
    assert "hunter2" not in str(refused.value)


def test_dry_run_does_not_ask_the_network(tmp_path, capsys, monkeypatch):
    """Not even where it may: the config of a model that is not here is asked for by its name."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        "huggingface_hub.file_download.get_hf_file_metadata",
        lambda *_, **__: pytest.fail("it asked"),
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        "model_name_or_path: nobody/nothing\n"
        "use_vllm: true\n"
        "vllm_mode: server\n"
        "use_cpu: true\n"
        "bf16: false\n"
    )
    assert main(["serve", "--config", str(recipe), "--dry_run"]) == 2
    assert "`hf download nobody/nothing config.json`" in capsys.readouterr().err
