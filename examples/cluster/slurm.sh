#!/bin/bash
# Train on several machines with Slurm. The arguments are those of `normscope train`:
#
#   sbatch --nodes 4 --gpus-per-node 8 --cpus-per-task 64 slurm.sh books/ --depth 20
#
# Submit it in a folder that all machines see, with torchrun on the PATH. The run is in runs/JOB; RUN=FOLDER sbatch ...
# chooses another, and continues the run that is there. Before the time limit, and before a preemption if Slurm has
# PreemptParameters=send_user_signal, the run saves a checkpoint, and the job is queued again. After a crash it continues
# from its last checkpoint.
#SBATCH --job-name=normscope
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
set -euo pipefail

run=${RUN:-runs/$SLURM_JOB_ID}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 10000))
processes=${NPROC:-${SLURM_GPUS_ON_NODE:-1}} # per machine
cores=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=$cores
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(((cores + processes - 1) / processes))}

requeue=
stop() { kill -TERM $(jobs -p) 2>/dev/null || true; } # each rank finishes its step, and rank 0 saves
trap 'requeue=yes; stop' USR1
trap stop TERM

# The name of the run is that of the torchrun job: after a restart, the same command continues the run.
srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$processes" \
  --rdzv-backend c10d --rdzv-endpoint "${hosts%%$'\n'*}:$port" --rdzv-id "${run##*/}" \
  --max-restarts 3 --shutdown-timeout 120 \
  -m normscope train "$@" --out "$run" &
step=$!
while kill -0 "$step" 2>/dev/null; do
  wait "$step" || true # a signal ends it early
done
code=0
wait "$step" || code=$?
if [ -n "$requeue" ] && [ "$code" -ne 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
