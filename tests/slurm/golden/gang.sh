#!/bin/bash
#SBATCH --job-name=stoker/train
#SBATCH --comment=t0ken
#SBATCH --chdir=/shared/me/slurm/run1/t0ken
#SBATCH --output=/shared/me/slurm/run1/t0ken/0/out-0
#SBATCH --error=/shared/me/slurm/run1/t0ken/0/err-0
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gres=gpu:8
#SBATCH --time=0-00:30:00
#SBATCH --signal=B:USR1@90
#SBATCH --no-requeue

unset SLURM_EXPORT_ENV SLURM_LABELIO SLURM_TIMELIMIT
here=/shared/me/slurm/run1/t0ken/"${SLURM_ARRAY_TASK_ID:-0}"
rm -f "$here"/result*.json "$here"/samples*.jsonl "$here"/gang-*.json "$here"/warned
unset PYTHONHOME
export PYTHONPATH=/home/me/.stoker/wheels/bundle-1"${PYTHONPATH:+:$PYTHONPATH}"
told=
trap 'told=yes; touch "$here"/warned' USR1
trap 'told=yes' TERM
srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpus-per-task=16 --overlap --kill-on-bad-exit=1 --wait=0 --mpi=none --export=ALL --input=none --open-mode=append --output=/shared/me/slurm/run1/t0ken/0/out-%n --error=/shared/me/slurm/run1/t0ken/0/err-%n /opt/python/bin/python3 -m stoker.worker.boot "$here/job.json" &
while told= code=0; do
  wait $! || code=$?
  [ -n "$told" ] || break
done
if [ "$code" -gt 128 ] && [ ! -e "$here/result.json" ]; then trap - TERM; kill -$((code - 128)) $$; fi
exit "$code"

# job.json
# {
#  "blobs": "/home/me/.stoker/artifacts",
#  "checkpoints": "/home/me/.stoker/checkpoints",
#  "environment": {},
#  "folder": "/home/me/project",
#  "grace": 9.0,
#  "job": {
#   "accelerators": {
#    "asked": "4 nodes with 16 CPUs, 8 GPUs each",
#    "count": 8,
#    "samples": "/shared/me/slurm/run1/t0ken/0/samples.jsonl"
#   },
#   "gang": {
#    "note": "/shared/me/slurm/run1/t0ken/0/gang-run1-train-1.json",
#    "timeout": 600.0,
#    "token": "s3cret",
#    "topology": "slurm"
#   },
#   "inputs": {},
#   "job": "run1/train/1",
#   "launch": {
#    "arguments": {},
#    "command": null,
#    "gang_timeout": 600.0,
#    "hang_after": 600.0,
#    "launcher": "single",
#    "num_processes": null,
#    "one_world": true,
#    "outputs": "main",
#    "processes_per_node": null,
#    "start_timeout": 300.0
#   },
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
#  "warning": 90.0
# }
