"""A temperature that moves: sampling and scoring follow it together.

TRL reads the temperature once, into the sampler's settings and into the head that scores; setting `trainer.temperature` later
changes neither. Here each generation sets the sampler's, and each completion carries the temperature that it was sampled with
to where it is scored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.schedule import FIELDS, TemperatureSchedule, resolve_schedule


class ScheduledTemperature:
    """Mixin before `GRPOTrainer`: reads the options `temperature_schedule` and `temperature_end`.

    Logs `sampling/temperature` where it moves, and adds `sampling_temperature`, a number a completion, to what is trained on.
    """

    logprob_policy: str
    sampling: SamplingParams

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.temperature_schedule = schedule_of(self.args)

    def _generate_and_score_completions(self, inputs):
        if not self.temperature_schedule.moves:
            return super()._generate_and_score_completions(inputs)
        temperature = self.temperature_schedule.at(self.state.global_step, self.state.max_steps)
        sample_at(self, temperature)
        self._score_at(temperature)
        self._metrics["train" if self.model.training else "eval"]["sampling/temperature"].append(temperature)
        output = super()._generate_and_score_completions(inputs)
        output["sampling_temperature"] = [temperature] * len(output["advantages"])
        return output

    def _compute_loss(self, model, inputs):
        if "sampling_temperature" in inputs:
            temperatures = set(inputs["sampling_temperature"])
            if len(temperatures) != 1:
                raise RuntimeError(
                    f"Completions sampled at {sorted(temperatures)} came to be scored in one micro-batch."
                )
            self._score_at(temperatures.pop())
        return super()._compute_loss(model, inputs)

    def _score_at(self, temperature: float) -> None:
        if self.logprob_policy != "model":
            self.sampling = replace(self.sampling, temperature=temperature)


def schedule_of(args: Any) -> TemperatureSchedule:
    """The schedule of a trainer's arguments; a constant one for a plain `GRPOConfig`."""
    defaults = {"temperature_schedule": "constant"}
    fields = {name: getattr(args, name, defaults.get(name)) for name in FIELDS}
    return resolve_schedule(fields, args.gradient_accumulation_steps, args.steps_per_generation, args.num_iterations)


def sample_at(trainer: Any, temperature: float) -> None:
    """Let the sampler draw at `temperature` from now on."""
    if trainer.use_vllm:
        trainer.vllm_generation.temperature = temperature
    else:
        trainer.generation_config.temperature = temperature
        trainer.generation_kwargs["temperature"] = temperature  # TRL lays these over the model's own config
