#!/bin/bash
# Runs with SkyPilot's real API server and a real Slurm as its target: launch, gang, managed job, cancel.
#
#     tests/nightly/skypilot.sh [FOLDER]        as root, on Debian with Slurm's and OpenSSH's servers
#
# Everything lies in FOLDER and is ended at the end: SkyPilot 0.14.1 in an environment of its own, a Slurm of two nodes
# with two simulated GPUs each, and a login node, which is an SSH server on loopback. No cloud is asked, and SkyPilot's
# catalog of accelerators is two lines of our own. What SkyPilot would load from the network while it prepares a node is
# put there instead: uv, by a `curl` that knows it, and Python 3.10, which must be on the PATH or in ~/.pyenv.
# In SkyPilot one line is changed: managed jobs look whether there is a network by asking public servers; here they ask
# its own API server.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "root is needed: nodes get host names of their own" >&2; exit 2; }
for program in slurmctld slurmd munged sshd unshare; do
    command -v $program >/dev/null || { echo "not installed: $program (slurmctld slurmd munge openssh-server)" >&2; exit 2; }
done
repository=$(realpath "$(dirname "$0")/../..")
python=${STOKER_PYTHON:-$repository/.venv/bin/python}
R=$(realpath -m "${1:-$(mktemp -d)}")
port=${PORT0:-17000}
mkdir -p "$R"/{ssh,local,login,uv,home/.slurm,home/.sky/catalogs/v8/common,slurm/{dev,state,log,munge},project,marks}
chmod 711 "$R/slurm/munge"
# Not a shim of pyenv's, which asks for its home.
python310=$(ls -d ~/.pyenv/versions/3.10.*/bin/python3.10 2>/dev/null | tail -1)
[ -n "$python310" ] || python310=$(command -v python3.10)

[ -x "$R/sky/bin/sky" ] || { python3 -m venv "$R/sky"; "$R/sky/bin/pip" install -q "skypilot[slurm,server]==0.14.1" uv; }
backend=$("$R/sky/bin/python" -c "import sky.backends.backend_utils as b; print(b.__file__)")
sed -i "s#^_TEST_IP_LIST = .*#_TEST_IP_LIST = ['http://127.0.0.1:46580/api/health']#" "$backend"

# A login node and nodes whose /usr/local/bin has what would come from the network.
cp -a /usr/local/bin/. "$R/local/"
printf '#!/bin/sh\nexport UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1\nexec %s/sky/bin/uv "$@"\n' "$R" >"$R/uv/uv"
printf '#!/bin/sh\nexport UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1\nexec %s/sky/bin/uvx "$@"\n' "$R" >"$R/uv/uvx"
cat >"$R/local/curl" <<SHIM
#!/bin/sh
for word in "\$@"; do
    case "\$word" in *astral.sh*) echo "mkdir -p \\\$HOME/.local/bin; cp $R/uv/uv $R/uv/uvx \\\$HOME/.local/bin/"; exit 0;; esac
done
exec /usr/bin/curl "\$@"
SHIM
chmod +x "$R"/uv/* "$R/local/curl"
ln -sf "$python310" "$R/local/python3.10"

# Slurm
S=$R/slurm
(umask 077; head -c 128 /dev/urandom >"$S/munge/key")
munged --force --key-file="$S/munge/key" --socket="$S/munge/socket" --pid-file="$S/munge/pid" \
    --log-file="$S/log/munged.log" --seed-file="$S/munge/seed" --num-threads=4
for gpu in 0 1; do ln -sfn /dev/null "$S/dev/gpu$gpu"; done
cat >"$S/slurm.conf" <<CONF
ClusterName=night
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$S/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/state/slurmd.%n
SlurmctldPidFile=$S/slurmctld.pid
SlurmdPidFile=$S/slurmd.%n.pid
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd.%n.log
SlurmdParameters=config_overrides
EnforcePartLimits=ALL
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=3600
NodeName=n1 NodeHostname=n1 NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4 RealMemory=4000 Gres=gpu:v100:2 State=UNKNOWN
NodeName=n2 NodeHostname=n2 NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4 RealMemory=4000 Gres=gpu:v100:2 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE DefaultTime=60 State=UP DefMemPerCPU=500
CONF
printf 'NodeName=n1 Name=gpu Type=v100 File=%s/dev/gpu[0-1]\nNodeName=n2 Name=gpu Type=v100 File=%s/dev/gpu[0-1]\n' "$S" "$S" >"$S/gres.conf"
echo CgroupAutomount=no >"$S/cgroup.conf"
{ cat /etc/hosts; echo "127.0.0.1 n1"; echo "127.0.0.1 n2"; } >"$S/hosts"
export SLURM_CONF=$S/slurm.conf
slurmctld -c -f "$SLURM_CONF"
for node in n1 n2; do
    unshare -u -m bash -c "hostname $node; mount --bind $S/hosts /etc/hosts; mount --bind $R/local /usr/local/bin; exec slurmd -f $SLURM_CONF -N $node"
done

# The login node
for name in host user; do [ -f "$R/ssh/$name" ] || ssh-keygen -q -t ed25519 -N "" -f "$R/ssh/$name"; done
cp "$R/ssh/user.pub" "$R/ssh/authorized_keys"
mkdir -p /run/sshd
cat >"$R/ssh/sshd_config" <<CONF
Port $((port + 22))
ListenAddress 127.0.0.1
HostKey $R/ssh/host
PidFile $R/ssh/pid
AuthorizedKeysFile $R/ssh/authorized_keys
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
UseDNS no
MaxStartups 100
SetEnv SLURM_CONF=$SLURM_CONF HOME=$R/login
CONF
unshare -m bash -c "mount --bind $R/local /usr/local/bin; exec $(command -v sshd) -f $R/ssh/sshd_config -E $R/ssh/log"
cat >"$R/home/.slurm/config" <<CONF
Host night
  HostName 127.0.0.1
  Port $((port + 22))
  User root
  IdentityFile $R/ssh/user
  StrictHostKeyChecking no
  UserKnownHostsFile $R/ssh/known_hosts
CONF
printf 'AcceleratorName,Clouds\nV100,"[%s]"\n' "'Slurm'" >"$R/home/.sky/catalogs/v8/common/accelerators.csv"
printf 'GPU,MemoryGB,Manufacturer\nV100,16,NVIDIA\n' >"$R/home/.sky/catalogs/v8/common/metadata.csv"
printf 'jobs:\n  controller:\n    consolidation_mode: true\n' >"$R/home/.sky/config.yaml"

finish() {
    squeue -h -o %i | xargs -r scancel || true
    "$R/sky/bin/sky" api stop >"$R/stop.log" 2>&1 || true
    # `sky api stop` leaves the controller of managed jobs: it is ours if it runs from our folder.
    for process in /proc/[0-9]*; do
        command=$({ tr '\0' ' ' <"$process/cmdline"; } 2>/dev/null || true)
        case "$command" in *"$R/sky/bin/python"*) kill "${process#/proc/}" 2>/dev/null || true ;; esac
    done
    # Sessions of the login node outlive its server: SkyPilot's ssh keeps connections open, and would use them again.
    [ -s "$R/ssh/pid" ] && pkill -P "$(cat "$R/ssh/pid")" || true
    for file in "$S"/slurmd.*.pid "$S/slurmctld.pid" "$S/munge/pid" "$R/ssh/pid"; do
        [ -s "$file" ] && kill "$(cat "$file")" 2>/dev/null || true
    done
}
trap finish EXIT
export HOME=$R/home STOKER_HOME=$R/stoker SKYPILOT_DISABLE_USAGE_COLLECTION=1 PATH=$R/sky/bin:$PATH
sky api start
sky check slurm

cd "$R/project"
cat >stoker.toml <<CONF
stack = "night"
[stacks.night]
orchestrator = {flavor = "skypilot", sky = "$R/sky/bin/sky", executable = "$python", patience = "120s", shares_files = true, infra = "slurm/night", cpus = "1+", memory = "1+"}
CONF
cat >steps.py <<'CODE'
import os
import socket
import sys
import time

from stoker import pipeline, step
from stoker.config import ResourceSettings, Torchrun

PAIR = {"resources": ResourceSettings(nodes=2, accelerators="V100:2")}


@step(cache=False, accelerator_policy="prefer", settings={"resources": ResourceSettings(accelerators="V100:2")})
def one() -> str:
    return os.environ["SKYPILOT_TASK_ID"]


@step(cache=False, accelerator_policy="prefer", settings={"resources": ResourceSettings(accelerators="V100:2")})
def two(task: str) -> str:
    assert task == os.environ["SKYPILOT_TASK_ID"], "it is to run on the same cluster, in the same task"
    return socket.gethostname()


@pipeline
def launch():
    two(one())


@step(cache=False, accelerator_policy="prefer", settings=PAIR, launch=Torchrun(nproc_per_node=1))
def ranks() -> str:
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", socket.gethostname(), flush=True)
    return os.environ["WORLD_SIZE"]


@pipeline
def gang():
    ranks()


@step(cache=False, settings={"orchestrator.skypilot": {"managed": True}})
def on_managed() -> str:
    return socket.gethostname()


@pipeline
def managed():
    on_managed()


@step(cache=False)
def sleeps() -> None:
    open(os.path.join(os.environ["MARKS"], "sleeps"), "w").close()
    time.sleep(3600)


@pipeline
def cancel():
    sleeps()


if __name__ == "__main__":
    {"launch": launch, "gang": gang, "managed": managed, "cancel": cancel}[sys.argv[1]]()
CODE
run() {
    local began=$SECONDS
    timeout 900 "$python" steps.py "$@"
    echo "PASSED $1 in $((SECONDS - began)) s"
}
nothing_left() {
    for _ in $(seq 60); do
        left=$(sky status -o json | grep -c '"name": "stoker-' || true)
        [ "$left" = 0 ] && return 0
        sleep 5
    done
    echo "clusters are left after $1" >&2
    sky status -o json >&2
    exit 1
}
run launch
run gang
"$(dirname "$python")/stoker" logs latest ranks | tee "$R/ranks"
grep -q "rank 0 of 2 on n1" "$R/ranks" && grep -q "rank 1 of 2 on n2" "$R/ranks"
run managed
nothing_left "launch, gang and managed"
export MARKS=$R/marks
sed -i "s#shares_files#envs = {MARKS = \"$MARKS\"}, shares_files#" stoker.toml
"$python" steps.py cancel & driver=$!
until [ -e "$MARKS/sleeps" ]; do sleep 1; kill -0 $driver; done
kill -INT $driver
wait $driver && exit 1
nothing_left "cancel"
[ -z "$(squeue -h)" ] || { squeue; exit 1; }
echo "PASSED cancel"
