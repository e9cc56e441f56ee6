"""Who talks to whom where vLLM samples: engines, processes, and the weights that travel."""

from __future__ import annotations

from collections.abc import Iterator

from grpo_ext.preflight.forecast import Forecast
from grpo_ext.recipe.memory import weight_bytes
from grpo_ext.recipe.rules import Values
from grpo_ext.vllm.settings import server_url


def traffic(v: Values, forecast: Forecast) -> Iterator[tuple[str, int | None]]:
    """Sentences, each with the bytes that it ends with or `None`; nothing where transformers samples."""
    if not v["use_vllm"]:
        return
    plan = forecast.plan
    batch, workers = plan.batch, v["vllm_tensor_parallel_size"]
    # an adapter is merged, so that the whole model travels, or goes as a file of float32
    alone = v["use_peft"] and v["vllm_sync_adapter"] == "adapter"
    size, what = forecast.size, "adapter" if alone else "weights"
    weights = (4 * size.trainable if alone else size.parameters * weight_bytes(size, v)) if size else None
    each = f"before each of {plan.generations:,} generations"
    if v["vllm_mode"] == "colocate":
        engines = batch.num_processes // workers
        share = "an engine in each process" if workers == 1 else f"an engine over every {workers} processes"
        yield f"colocate: {share}, {engines} in all, each for {batch.completions // engines:,} completions", None
        yield f"{each} every process loads its {what} into its engine", weights
        return
    served = f"{workers} worker{'' if workers == 1 else 's'}"
    yield f"server at {server_url(v)}, {served}; process 0 alone talks to it", None
    yield f"each generation is one request of {batch.prompts:,} prompts x {batch.num_generations} completions", None
    if alone:
        yield f"{each} process 0 writes the adapter into output_dir, where the server reads it", weights
        return
    port = v["vllm_group_port"]
    yield f"{each} process 0 sends its weights to the workers, who reach it at port {port}", weights
