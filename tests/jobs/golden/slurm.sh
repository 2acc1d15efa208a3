#!/bin/bash
#SBATCH --job-name=quickstart
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=1024000M
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --partition=team-a
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=quickstart-%j.log

# Written by engine launch slurm. It saves 300 s before a time limit; a stop, and a failure that another try may cure, put it into the
# queue again, up to 100 times.
set -u
export FI_EFA_USE_HUGE_PAGE=0   # the program starts processes
# What the run's processes know each other by, and where they meet.
export ENGINE_TOKEN=${ENGINE_TOKEN:-$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')}
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export ENGINE_MEETS_AT=$host:$((10000 + SLURM_JOB_ID % 20000))

srun --kill-on-bad-exit=0 --mpi=none bash -c 'exec engine run '\''/fsx/it'\''\'\'''\''s/r.toml'\'' --out /fsx/runs/gpt --nodes 2 --node-rank "$SLURM_NODEID" --coordinator "$ENGINE_MEETS_AT" --stopped-code 75 --retry-code 76'
code=$?

case $code in
  0 | 1 | 2 | 17) exit $code ;;   # the end; the recipe, the data, the options, a bad number of its own: another try ends alike
esac
if [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
  echo "ended with $code; into the queue again"
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit $code
