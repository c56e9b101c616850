#!/bin/bash
#SBATCH --job-name=stoker/train/hook
#SBATCH --comment=t0ken
#SBATCH --chdir=/shared/me/slurm/run1/t0ken
#SBATCH --output=/shared/me/slurm/run1/t0ken/0/out-0
#SBATCH --error=/shared/me/slurm/run1/t0ken/0/err-0
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --partition=cpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --no-requeue

unset SLURM_EXPORT_ENV SLURM_LABELIO SLURM_TIMELIMIT
here=/shared/me/slurm/run1/t0ken/"${SLURM_ARRAY_TASK_ID:-0}"
rm -f "$here"/result*.json "$here"/samples*.jsonl "$here"/gang-*.json "$here"/warned
unset PYTHONHOME
export PYTHONPATH=/home/me/.stoker/wheels/bundle-1"${PYTHONPATH:+:$PYTHONPATH}"
exec /opt/python/bin/python3 -m stoker.worker.boot "$here/job.json"

# job.json
# {
#  "blobs": "/home/me/.stoker/artifacts",
#  "checkpoints": "/home/me/.stoker/checkpoints",
#  "environment": {},
#  "folder": "/home/me/project",
#  "grace": 9.0,
#  "job": {
#   "hook": {
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
#   "inputs": {},
#   "job": "run1/train/1/hook",
#   "kind": "hook",
#   "step": 0,
#   "timed": true,
#   "told": {
#    "advice": "",
#    "cause": "",
#    "message": "",
#    "pipeline": "training",
#    "run": "run1",
#    "status": "succeeded",
#    "step": "train",
#    "traceback": "",
#    "type": ""
#   }
#  },
#  "keep": 0,
#  "package": "c0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0dec0de",
#  "path": [
#   "/home/me/project"
#  ],
#  "root": "/home/me/project",
#  "simulate": "",
#  "step": {
#   "environment": {},
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
