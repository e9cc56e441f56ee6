"""vLLM support in addition to TRL's: weight updates on a CPU, engine settings, and a server.

On a CPU, weights are transferred over gloo, and layers use the weights that were loaded last; CUDA
is unaffected. The trainer's side is in `grpo_ext.samplers.vllm_generation` and
`grpo_ext.samplers.vllm_client`.
"""


class EngineFailure(RuntimeError):
    """Raised when an engine fails or returns wrong results.

    The run then saves a checkpoint and ends.
    """
