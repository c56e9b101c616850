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
#SBATCH --no-requeue

unset SLURM_EXPORT_ENV SLURM_LABELIO SLURM_TIMELIMIT
here=/shared/me/slurm/run1/t0ken/"${SLURM_ARRAY_TASK_ID:-0}"
rm -f "$here"/result*.json "$here"/samples*.jsonl "$here"/gang-*.json "$here"/warned
trap '[ "$BASH_SUBSHELL" = 0 ] || exit; trap - ERR EXIT; depth=${#BASH_LINENO[@]}; line=$LINENO; [ "$depth" -lt 2 ] || line=${BASH_LINENO[depth - 2]}; line=$(sed -n "${line}p" "${BASH_SOURCE[depth > 0 ? depth - 1 : 0]:-$0}" 2>/dev/null || :); case $line in "#!"*) line= ;; esac; echo "before the step began, this failed: ${line:-$BASH_COMMAND}" >&2' ERR EXIT
set -eE
if ! command -v module >/dev/null; then . /etc/profile || true; fi
module load apptainer
image=/shared/me/slurm/images/e10fb153bb8c3fb2d9b2c5ef.sif
if [ ! -e "$image" ]; then
  mkdir -p "${image%/*}"
  exec 9>"$image.lock"
  flock 9 || true
  if [ ! -e "$image" ]; then
    building=$image.$SLURM_JOB_ID
    cat > "$building.def" <<'STOKER-DEFINITION'
Bootstrap: docker
From: python:3.11-slim

%post
set -e
export WORD="it's \`\$5\`"
( apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/* )
export PIP_BREAK_SYSTEM_PACKAGES=1
export PIP_ROOT_USER_ACTION=ignore
export PIP_NO_CACHE_DIR=1
mkdir -p /opt/stoker/
cat > /opt/stoker/requirements-1-listed.txt <<'STOKER-FILE'
six==1.16
STOKER-FILE
( python3 -m pip install -r /opt/stoker/requirements-1-listed.txt )
mkdir -p /app && cd /app
( chmod 0777 /app )

%environment
export WORD="it's \`\$5\`"
STOKER-DEFINITION
    apptainer build --fakeroot "$building.sif" "$building.def" >&2 || { rm -f "$building".*; false; }
    mv "$building.sif" "$image"
    rm -f "$building.def" "$image.lock"
  fi
  exec 9>&-
fi
trap - ERR EXIT
unset PYTHONHOME
exec apptainer exec --bind=/shared/me/slurm:/shared/me/slurm --bind=/home/me/.stoker/checkpoints:/home/me/.stoker/checkpoints --bind=/home/me/.stoker/artifacts:/home/me/.stoker/artifacts --bind=/home/me/.stoker/wheels/bundle-1:/home/me/.stoker/wheels/bundle-1:ro /shared/me/slurm/images/e10fb153bb8c3fb2d9b2c5ef.sif env PYTHONPATH=/home/me/.stoker/wheels/bundle-1 python3 -m stoker.worker.boot "$here/job.json"

# job.json
# {
#  "blobs": "/home/me/.stoker/artifacts",
#  "checkpoints": "/home/me/.stoker/checkpoints",
#  "environment": {},
#  "folder": "/home/me/project",
#  "grace": 9.0,
#  "job": {
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
