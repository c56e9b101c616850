#!/bin/bash
#SBATCH --job-name=stoker/train
#SBATCH --comment=t0ken
#SBATCH --chdir=/shared/me/slurm/run1/t0ken
#SBATCH --output=/shared/me/slurm/run1/t0ken/0/out-0
#SBATCH --error=/shared/me/slurm/run1/t0ken/0/err-0
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=61036M
#SBATCH --tmp=1024M
#SBATCH --gres=gpu:a100:2
#SBATCH --time=0-01:05:00
#SBATCH --no-requeue

unset SLURM_EXPORT_ENV SLURM_LABELIO SLURM_TIMELIMIT
here=/shared/me/slurm/run1/t0ken/"${SLURM_ARRAY_TASK_ID:-0}"
rm -f "$here"/result*.json "$here"/samples*.jsonl "$here"/gang-*.json "$here"/warned
unset PYTHONHOME
export PYTHONPATH=/shared/me/slurm/bundle-1"${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m stoker.worker.boot "$here/job.json"

# job.json
# {
#  "blobs": "s3://bucket/store",
#  "checkpoints": "/shared/me/slurm/checkpoints",
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
#  "warning": 0.0
# }
