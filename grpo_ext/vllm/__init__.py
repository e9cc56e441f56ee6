"""vLLM support beyond TRL's: a CPU backend that accepts new weights, settings, a server.

On a CPU, weights are transferred over gloo, and layers keep the weights that are loaded; CUDA is
unaffected. The trainer's side is in `grpo_ext.samplers.vllm_generation` and
`grpo_ext.samplers.vllm_client`.
"""


class EngineFailure(RuntimeError):
    """An engine failed or gave wrong results. It ends a run with a checkpoint."""
