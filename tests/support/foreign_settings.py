"""Settings of TRL, open-r1, ms-swift and verl, of the shape that public files have."""

from __future__ import annotations

TRL = """
accelerate launch --config_file examples/deepspeed_zero2.yaml --num_processes 4 \\
    trl/scripts/grpo.py --model_name_or_path org/small --dataset_name org/rows --dtype bfloat16 \\
    --reward_funcs accuracy_reward my.rewards.brief --reward_weights 1.0 0.5 \\
    --use_peft --lora_target_modules "q_proj", "v_proj" --learning_rate 1e-5 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 8
"""
OPEN_R1 = """
model_name_or_path: org/small
torch_dtype: bfloat16
dataset_name: org/rows
dataset_prompt_column: problem
system_prompt: "Think first.\\nThen answer."
reward_funcs: [accuracy, format, cosine, cf_code]
reward_weights: [1.0, 0.5, 0.25, 2.0]
cosine_max_len: 2000
repetition_n_grams: 4
max_prompt_length: 512
warmup_ratio: 0.1
num_generations: 14
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
overwrite_output_dir: true
wandb_project: mine
"""
SWIFT = """
SYSTEM="Solve it."
NPROC_PER_NODE=4 \\
swift rlhf --rlhf_type grpo --model org/small --dataset org/rows:main#1000 --use_hf true \\
    --columns '{"answer": "solution", "question": "query"}' --system "$SYSTEM" \\
    --reward_funcs accuracy format soft_overlong --soft_cache_length 128 \\
    --tuner_type lora --lora_rank 16 --torch_dtype bfloat16 --deepspeed zero2 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --steps_per_generation 16 \\
    --num_generations 8 --max_completion_length 1024 --overlong_filter true --dynamic_sample true \\
    --save_steps 100 --load_from_cache_file true
"""
VERL = """
n=4
data=$HOME/data/rows
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files="['$data/train.parquet']" data.val_files=$data/test.parquet \\
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=$((512 * 2)) \\
    actor_rollout_ref.model.path=org/small actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.optim.lr_warmup_steps=5 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=${n} \\
    actor_rollout_ref.rollout.temperature=0.7 critic.optim.lr=1e-5 \\
    trainer.n_gpus_per_node=4 trainer.nnodes=2 trainer.save_freq=20 trainer.test_freq=5 \\
    trainer.experiment_name=$NAME trainer.total_epochs=15 $@
"""
