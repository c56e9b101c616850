"""The configuration of a Slurm cluster on one machine, and why its odd lines are there."""

from __future__ import annotations

from typing import Final

CLUSTER: Final = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A job that is put back into the queue waits until its first credential is over, else two minutes.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/state/slurmd.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
# A node may say that it has more than this machine.
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill,UsePss
MpiDefault=none
# A node that somebody set down stays so; one that did not answer is back when it does.
ReturnToService=1
KillWait=6
MinJobAge=3600
MaxArraySize=101
SlurmctldTimeout=30
# Clients ask a controller that is away, and wait for one that is silent, for this long: else ten seconds.
MessageTimeout=5
SlurmdTimeout=5
InactiveLimit=0
Waittime=0
# What never fits is refused at once.
EnforcePartLimits=ALL
{accounting}
{nodes}
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE DefaultTime=60 State=UP DefMemPerCPU=500
PartitionName=short Nodes=n[1-2] MaxTime=30 DefaultTime=5 State=UP DefMemPerCPU=500
"""
NODE: Final = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={memory} TmpDisk=10000 Gres=gpu:{gpu}:{gpus} "
    "Feature={gpu},{name} State=UNKNOWN"
)
DATABASE: Final = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct
"""
WITHOUT_ACCOUNTS: Final = "AccountingStorageType=accounting_storage/none"
WITH_ACCOUNTS: Final = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
# The socket of munge: without it the controller waits for its database for ever.
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu
"""
