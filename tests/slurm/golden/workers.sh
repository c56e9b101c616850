#!/bin/bash
#SBATCH --job-name=stoker/train
#SBATCH --comment=t0ken
#SBATCH --chdir=/shared/me/slurm/run1/t0ken
#SBATCH --output=/shared/me/slurm/run1/t0ken/out-%a
#SBATCH --error=/shared/me/slurm/run1/t0ken/err-%a
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --no-requeue
#SBATCH --array=0-19

unset SLURM_EXPORT_ENV SLURM_LABELIO SLURM_TIMELIMIT
trap '[ "$BASH_SUBSHELL" = 0 ] || exit; trap - ERR EXIT; depth=${#BASH_LINENO[@]}; line=$LINENO; [ "$depth" -lt 2 ] || line=${BASH_LINENO[depth - 2]}; line=$(sed -n "${line}p" "${BASH_SOURCE[depth > 0 ? depth - 1 : 0]:-$0}" 2>/dev/null || :); case $line in "#!"*) line= ;; esac; echo "before the step began, this failed: ${line:-$BASH_COMMAND}" >&2' ERR EXIT
set -eE
if ! command -v module >/dev/null; then . /etc/profile || true; fi
module load cuda/12.4
trap - ERR EXIT
unset PYTHONHOME
export PYTHONPATH=/home/me/.stoker/wheels/bundle-1"${PYTHONPATH:+:$PYTHONPATH}"
name=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}
unset ${!SLURM_ARRAY_@}
exec /opt/python/bin/python3 -m stoker.worker.pool /shared/me/slurm/run1/p00l "$name"
