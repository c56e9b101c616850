"""Commands that print what those of a real cluster printed: Slurm 22.05.8, with more nodes than a test can start.

They know the questions of `backends.slurm.cluster` and `sbatch --test-only`, and refuse every other one.
`tests/slurm/test_slurm_double.py` asks a real Slurm the same, and compares.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SINFO: Final = "sinfo --all --noheader --exact --format=%R|%D|%c|%m|%d|%f|%G|%T|%N"
PARTITIONS: Final = "scontrol --all --oneliner show partition"
CONFIG: Final = "scontrol show config"
RECORDED: Final[Mapping[str, str]] = {
    # Of "big" the nodes are of a cloud, and off; those of "mid" have 2048 CPUs each and are down.
    SINFO: """\
big|0|0|0|0|(null)|(null)|n/a|
mid|1536|2K|515000|0|(null)|nvme:3P|down|d[0001-1536]
both|1536|2K|515000|0|(null)|nvme:3P|down|d[0001-1536]
""",
    PARTITIONS: """\
PartitionName=big AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A \
DefaultTime=01:30:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=1024 MaxTime=7-00:00:00 \
MinNodes=0 LLN=NO MaxCPUsPerNode=1024 Nodes=c[0001-2048] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO \
OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=262144 TotalNodes=2048 \
SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=2097152 \
TRES=cpu=262144,mem=4P,node=2048,billing=262144
PartitionName=mid AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A \
DefaultTime=UNLIMITED DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED \
MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=d[0001-1536] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO \
ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=3145728 TotalNodes=1536 \
SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerCPU=4096 \
TRES=cpu=3145728,mem=772500G,node=1536,billing=3145728
PartitionName=both AllowGroups=ALL AllowAccounts=x,y DenyQos=z AllocNodes=ALL Default=NO QoS=N/A DefaultTime=NONE \
DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=00:30:00 MinNodes=2 LLN=NO \
MaxCPUsPerNode=UNLIMITED Nodes=c[0001-2048],d[0001-1536] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO \
OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=DRAIN TotalCPUs=3407884 TotalNodes=3587 \
SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED \
TRES=cpu=3407884,mem=4966807G,node=3587,billing=3407884
""",
    CONFIG: """\
AccountingStorageEnforce = none
EnforcePartLimits       = ALL
JobSubmitPlugins        = (null)
CliFilterPlugins        = (null)
MaxArraySize            = 10001
SLURM_VERSION           = 22.05.8
""",
}


def write(folder: Path, answers: Mapping[str, str] = RECORDED) -> dict[str, str]:
    """Make the commands in a folder; the environment that finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in ("sinfo", "scontrol", "sbatch"):
        lines = ["#!/bin/sh", f'case "{program} $*" in']
        for number, (question, text) in enumerate(answers.items()):
            (folder / f"answer-{number}").write_text(text)
            lines.append(f"{shlex.quote(question)}) exec cat {shlex.quote(str(folder / f'answer-{number}'))} ;;")
        lines.append('"sbatch --test-only "*) echo "sbatch: Job 2 to start at 2031-01-31T10:00:00" >&2; exit 0 ;;')
        lines += [f"*) echo '{program}: error: Invalid question' >&2; exit 1 ;;", "esac"]
        (folder / program).write_text("\n".join(lines) + "\n")
        (folder / program).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
