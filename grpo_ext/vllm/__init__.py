"""vLLM support beyond TRL's: loading new weights on a CPU, engine settings, and a server.

On a CPU, weights are transferred over gloo, and layers use the weights that were loaded last; CUDA
is unaffected. The trainer's side is in `grpo_ext.samplers.vllm_generation` and
`grpo_ext.samplers.vllm_client`.
"""


class EngineFailure(RuntimeError):
    """An engine failed or returned wrong results; the run saves a checkpoint and ends."""
