#!/bin/bash
#SBATCH --job-name=run1.stoker:train
#SBATCH '--comment=for the paper t0ken'
#SBATCH --chdir=/shared/me/slurm/run1/t0ken
#SBATCH --output=/shared/me/slurm/run1/t0ken/0/out-0
#SBATCH --error=/shared/me/slurm/run1/t0ken/0/err-0
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --partition=gpu,long
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --reservation=tuesday
#SBATCH '--nodelist=n[1-4]'
#SBATCH --exclude=n3
#SBATCH --mail-type=END,FAIL
#SBATCH --mail-user=me@example.org
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=61036M
#SBATCH --tmp=1024M
#SBATCH --gpus-per-node=a100_80:2
#SBATCH --constraint=ib
#SBATCH --time=1-02:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --exclusive=user
#SBATCH --contiguous
#SBATCH --nice=100
#SBATCH --switches=1@10:00

unset SLURM_EXPORT_ENV SLURM_LABELIO SLURM_TIMELIMIT
here=/shared/me/slurm/run1/t0ken/"${SLURM_ARRAY_TASK_ID:-0}"
rm -f "$here"/result*.json "$here"/samples*.jsonl "$here"/gang-*.json "$here"/warned
trap '[ "$BASH_SUBSHELL" = 0 ] || exit; trap - ERR EXIT; depth=${#BASH_LINENO[@]}; line=$LINENO; [ "$depth" -lt 2 ] || line=${BASH_LINENO[depth - 2]}; line=$(sed -n "${line}p" "${BASH_SOURCE[depth > 0 ? depth - 1 : 0]:-$0}" 2>/dev/null || :); case $line in "#!"*) line= ;; esac; echo "before the step began, this failed: ${line:-$BASH_COMMAND}" >&2' ERR EXIT
set -eE
if ! command -v module >/dev/null; then . /etc/profile || true; fi
module load cuda/12.4 python/3.11
ulimit -l unlimited
export NCCL_DEBUG='WARN'
trap - ERR EXIT
unset PYTHONHOME
export PYTHONPATH=/home/me/.stoker/wheels/bundle-1"${PYTHONPATH:+:$PYTHONPATH}"
exec /opt/python/bin/python3 -m stoker.worker.boot "$here/job.json"

# job.json
# {
#  "blobs": "/home/me/.stoker/artifacts",
#  "checkpoints": "/home/me/.stoker/checkpoints",
#  "environment": {
#   "SECRET_WORD": "plugh"
#  },
#  "folder": "/home/me/project",
#  "grace": 9.0,
#  "job": {
#   "accelerators": {
#    "asked": "7.5 CPUs, A100-80GB:2, 64GB, 1GiB disk",
#    "count": 2,
#    "samples": "/shared/me/slurm/run1/t0ken/0/samples.jsonl"
#   },
#   "inputs": {},
#   "job": "run1/train/1",
#   "step": 0,
#   "timed": true
#  },
#  "keep": 0,
#  "package": "c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de",
#  "path": [
#   "/home/me/project"
#  ],
#  "root": "/home/me/project",
#  "simulate": "",
#  "step": {
#   "environment": {
#    "SECRET_WORD": "plugh"
#   },
#   "name": "train",
#   "outputs": [],
#   "source": {
#    "argv": [],
#    "digest": "",
#    "kind": "script",
#    "metaflow": false,
#    "module": "train",
#    "path": "/home/me/project/train.py",
#    "qualname": "train",
#    "root": "/home/me/project",
#    "zenml": false
#   },
#   "split": [],
#   "unpack": false
#  },
#  "version": 1,
#  "warning": 300.0
# }
