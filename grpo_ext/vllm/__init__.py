"""What vLLM needs beside TRL: its CPU backend made fit for training, settings from a recipe, a server that starts and stops.

On a CPU weights travel by gloo, and layers keep the weight that is loaded into them. Nothing of that is active on CUDA. The
trainer's end of it is in `grpo_ext.samplers`.
"""


class EngineFailure(RuntimeError):
    """The vLLM engine cannot be trusted or reached any more; a run ends with it, after saving a checkpoint."""
