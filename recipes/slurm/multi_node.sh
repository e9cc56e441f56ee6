#!/usr/bin/env bash
# Trains on N - 1 machines and samples on one, under Slurm:
#
#   sbatch --nodes 3 recipes/slurm/multi_node.sh RECIPE        # two machines train, one samples
#
# The first N - 1 machines run accelerate with multi_node.yaml, and the last one runs the recipe's vLLM server. The recipe must set
# `use_vllm: true` and `vllm_mode: server`; this script sets the server's address. These environment variables are optional: GPUS is
# the number of GPUs per machine (default: 8), ACCELERATE_CONFIG is another accelerate config, and TRAIN_PORT, SAMPLE_PORT and
# GROUP_PORT replace the ports below if they are in use.
#SBATCH --job-name grpo
#SBATCH --ntasks-per-node 1
#SBATCH --exclusive
#SBATCH --output %x-%j.log
set -euo pipefail
RECIPE=${1:?pass a recipe as the first argument}
GPUS=${GPUS:-8}
ACCELERATE_CONFIG=${ACCELERATE_CONFIG:-recipes/accelerate/multi_node.yaml}
TRAIN_PORT=${TRAIN_PORT:-29500} SAMPLE_PORT=${SAMPLE_PORT:-8000} GROUP_PORT=${GROUP_PORT:-51216}
mapfile -t HOSTS < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
SAMPLER=${HOSTS[-1]}
TRAINERS=$((${#HOSTS[@]} - 1))
((TRAINERS > 0)) || { echo "At least two machines are needed: one trains, and one samples. Set --nodes to 2 or more." >&2; exit 2; }
# The server listens at the sampler's address. Process 0, on the first machine, opens the group port.
# The server and the trainers share a key; without it, the server would accept weights from anyone who can reach it.
export VLLM_API_KEY=${VLLM_API_KEY:-$(head -c 24 /dev/urandom | base64)}
SERVER=(--vllm_server_host "$SAMPLER" --vllm_server_port "$SAMPLE_PORT" --vllm_group_port "$GROUP_PORT")

srun --nodes 1 --nodelist "$SAMPLER" --kill-on-bad-exit=0 \
  grpo-ext serve --config "$RECIPE" "${SERVER[@]}" --vllm_tensor_parallel_size "$GPUS" &
STEP=$!
trap 'kill "$STEP" 2>/dev/null || true' EXIT

TRAIN_ON=$(IFS=,; echo "${HOSTS[*]:0:TRAINERS}")
srun --nodes "$TRAINERS" --nodelist "$TRAIN_ON" --kill-on-bad-exit=1 bash -c '
  exec accelerate launch --config_file "$0" \
    --num_machines "$1" --num_processes "$2" --machine_rank "$SLURM_PROCID" --main_process_ip "$3" --main_process_port "$4" \
    -m grpo_ext.train --config "${@:5}"' \
  "$ACCELERATE_CONFIG" "$TRAINERS" "$((TRAINERS * GPUS))" "${HOSTS[0]}" "$TRAIN_PORT" "$RECIPE" "${SERVER[@]}" --vllm_server_timeout 900
