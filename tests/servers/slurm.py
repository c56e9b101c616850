"""A Slurm cluster of the tests' own: a controller and four nodes on this machine, with GPUs that are only files.

All of it is below a temporary folder, on free ports of loopback, with a munge of its own; nothing of the machine's is
read or written. `make test` installs Debian's packages where it may. Started by root, each node has a host name of its
own; started by anybody else, they share this machine's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil
import pytest
from tests.servers import slurmconf
from tests.servers.containers import program
from tests.waiting import until

NODES: Final[Mapping[str, str]] = {"n1": "v100", "n2": "v100", "n3": "h100", "n4": "h100"}
"""The nodes and the type of their GPUs."""
CPUS: Final = 4
GPUS: Final = 4
MEMORY: Final = 4000
"""MB of each node, which Slurm believes."""
START_SECONDS: Final = 90.0
"""All of it is up in a second or two; a machine that is busy with other things may take longer."""
STOP_SECONDS: Final = 15.0

_WELL: Final = ("idle", "mixed", "allocated")
_PROGRAMS: Final = ("slurmctld", "slurmd", "munged", "sbatch", "squeue")
_ACCOUNTING: Final = ("slurmdbd", "mariadbd", "mariadb-install-db")


class Cluster:
    """A running cluster. `environment` is what a program needs to use it."""

    def __init__(self, folder: Path, *, accounting: bool) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.accounting = accounting
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        controller, *ports = free_ports(len(NODES) + 3)
        self.controller_port = controller
        self._database_ports = ports[-2:]
        self._user = "root" if os.getuid() == 0 else psutil.Process().username()
        for name in ("dev", "state", "log", "munge"):
            (folder / name).mkdir()
        folder.chmod(0o755)
        (folder / "munge").chmod(0o711)  # munged refuses a socket that others cannot reach
        (folder / "munge" / "key").write_bytes(os.urandom(128))
        (folder / "munge" / "key").chmod(0o600)
        for number in range(GPUS):
            # It must be a character device; the number at its end becomes CUDA_VISIBLE_DEVICES.
            (folder / "dev" / f"gpu{number}").symlink_to("/dev/null")
        nodes = [
            slurmconf.NODE.format(name=name, port=port, cpus=CPUS, memory=MEMORY, gpu=gpu, gpus=GPUS)
            for (name, gpu), port in zip(NODES.items(), ports)
        ]
        (folder / "slurm.conf").write_text(
            slurmconf.CLUSTER.format(
                controller=controller,
                user=self._user,
                folder=folder,
                nodes="\n".join(nodes),
                accounting=self._accounting_lines(),
            )
        )
        (folder / "gres.conf").write_text(
            "".join(
                f"NodeName={name} Name=gpu Type={gpu} File={folder}/dev/gpu[0-{GPUS - 1}]\n"
                for name, gpu in NODES.items()
            )
        )
        (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")  # it must be there, and not empty

    def _accounting_lines(self) -> str:
        if not self.accounting:
            return slurmconf.WITHOUT_ACCOUNTS
        return slurmconf.WITH_ACCOUNTS.format(port=self._database_ports[1], folder=self.folder)

    # What a test does with it

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A client's command."""
        done = subprocess.run(
            argv, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, f"{' '.join(argv)}\n{done.stdout}\n{done.stderr}"
        return done

    def jobs(self) -> list[dict[str, str]]:
        """All jobs that the controller remembers, the latest last."""
        names = ("id", "state", "name", "comment", "nodes", "reason")
        done = self.run("squeue", "--noheader", "--states=all", "--sort=i", "--format=%i|%T|%j|%k|%N|%r")
        return [dict(zip(names, line.split("|"))) for line in done.stdout.splitlines()]

    def node_fails(self, name: str) -> None:
        """As if a node had died: its jobs are lost at once."""
        self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=tests")

    def node_returns(self, name: str) -> None:
        """Take a node that failed into service again."""
        if f"slurmd.{name}" not in self._daemons or self._daemons[f"slurmd.{name}"].poll() is not None:
            self._start_node(name)
        until(
            lambda: (
                self.run("scontrol", "update", f"nodename={name}", "state=resume", check=False).returncode == 0
                or self.states().get(name) == "idle"
            )
        )
        until(lambda: self.states().get(name) in _WELL)

    def kill_node(self, name: str) -> None:
        """Kill all that runs on a node, its daemon included, as a power cut would."""
        daemon = self._daemons.pop(f"slurmd.{name}")
        victims = [*self._steps(name)]
        for one in list(victims):
            with contextlib.suppress(psutil.Error):
                victims += one.children(recursive=True)
        daemon.kill()
        daemon.wait()
        for one in victims:
            with contextlib.suppress(psutil.Error):
                one.kill()

    def programs(self, words: str, **environment: str) -> list[psutil.Process]:
        """The processes that jobs of this cluster started as their own programs, by words of their command line and by
        variables; what those started is not among them."""
        programs = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                parent = process.parent()
                if words not in " ".join(process.cmdline()) or parent is None or words in " ".join(parent.cmdline()):
                    continue
                variables = {"SLURM_CONF": self.environment["SLURM_CONF"], **environment}
                if process.name() != "srun" and variables.items() <= process.environ().items():
                    programs.append(process)
        return programs

    def kill_daemon(self, name: str) -> None:
        """Kill a node's daemon alone: the steps there go on."""
        daemon = self._daemons.pop(f"slurmd.{name}")
        for process in [*psutil.Process(daemon.pid).children(), psutil.Process(daemon.pid)]:
            if not process.name().startswith("slurmstepd"):
                process.kill()
        daemon.wait()

    def stop_controller(self) -> None:
        """Nobody answers any more; jobs go on."""
        self._stop("slurmctld")

    @contextlib.contextmanager
    def silent_controller(self) -> Iterator[None]:
        """Within the block the controller hangs: it takes connections and answers nobody; jobs go on."""
        daemon = self._daemons["slurmctld"]
        daemon.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGCONT)
        until(lambda: self.run("scontrol", "ping", check=False).stdout.count("UP") > 0)

    def start_controller(self, *, clear: bool = False) -> None:
        """The controller is back; with `clear` it remembers nothing."""
        self._start_controller(clear=clear)
        until(lambda: self.run("scontrol", "ping", check=False).stdout.count("UP") > 0)

    def enforce_limits(self) -> None:
        """From now on no job starts above the limits of its QOS and accounts; the user has an account."""
        line = "AccountingStorageEnforce=limits,qos\n"
        configuration = self.folder / "slurm.conf"
        if line in configuration.read_text():
            return
        self.run("sacctmgr", "-i", "add", "account", "lab")
        self.run("sacctmgr", "-i", "add", "user", self._user, "account=lab")
        self.run("sacctmgr", "-i", "modify", "user", self._user, "set", "defaultaccount=lab")
        self.stop_controller()
        with configuration.open("a") as file:
            file.write(line)
        self.start_controller()
        until(self._is_well, what=self._logs)

    def end_jobs(self) -> None:
        """End everything, and wait until all is over and every node is well."""
        self.run("scancel", "--user", self._user, check=False)
        until(lambda: not self.run("squeue", "--noheader", check=False).stdout)
        for name, state in self.states().items():
            if state not in _WELL:
                self.node_returns(name)

    def states(self) -> dict[str, str]:
        """The nodes' states as sinfo shows them: "idle", "down*"."""
        shown = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False).stdout
        return dict(line.split() for line in shown.splitlines())

    def _is_well(self) -> bool:
        states = self.states()
        return all(states.get(name) in _WELL for name in NODES)

    # Daemons

    def start(self) -> None:
        """All of it; returns when every node is idle."""
        munge = self.folder / "munge"
        self._start(
            "munged",
            *("--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed", "--num-threads=2"),
        )
        until((munge / "socket").exists)
        if self.accounting:
            self._start_database()
        self._start_controller(clear=True)
        for name in NODES:
            self._start_node(name)
        until(self._is_well, what=self._logs)

    def _start_controller(self, *, clear: bool) -> None:
        self._start("slurmctld", "-D", "-f", str(self.folder / "slurm.conf"), *(["-c"] if clear else []))

    def _start_node(self, name: str) -> None:
        words = ["slurmd", "-D", "-f", str(self.folder / "slurm.conf"), "-N", name]
        if os.getuid() != 0:
            self._start(*words, key=f"slurmd.{name}")
            return
        hosts = self.folder / "hosts"
        hosts.write_text(Path("/etc/hosts").read_text() + "".join(f"127.0.0.1 {one}\n" for one in NODES))
        script = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
        found = [program(words[0]) or words[0], *words[1:]]
        self._start(
            "unshare", "--uts", "--mount", "sh", "-c", script, "sh", name, str(hosts), *found, key=f"slurmd.{name}"
        )

    def _start_database(self) -> None:
        """MariaDB, and Slurm's own daemon before it."""
        folder, (database, port) = self.folder / "db", self._database_ports
        folder.mkdir()
        as_root = ["--user=root"] if os.getuid() == 0 else []
        words = ["--no-defaults", *as_root, f"--datadir={folder}/data"]
        made = subprocess.run(
            [program("mariadb-install-db") or "", *words, "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        self._start(
            "mariadbd",
            *words,
            *(
                f"--socket={folder}/socket",
                f"--port={database}",
                "--bind-address=127.0.0.1",
                f"--pid-file={folder}/pid",
            ),
            *("--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"),
        )
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={folder}/socket", "--execute"]
        until(lambda: self.run(*client, "select 1", check=False).returncode == 0, what=self._logs)
        for host in ("127.0.0.1", "localhost"):
            self.run(*client, f"create user slurm@'{host}' identified by 'x'; grant all on *.* to slurm@'{host}'")
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(slurmconf.DATABASE.format(folder=self.folder, port=port, user=self._user, database=database))
        conf.chmod(0o600)
        self._start("slurmdbd", "-D")
        until(lambda: listens(port), what=self._logs)

    def _start(self, name: str, *arguments: str, key: str = "") -> None:
        key = key or name
        with (self.folder / "log" / f"{key}.out").open("ab") as output:
            self._daemons[key] = subprocess.Popen(
                # It ends with whoever started it, however that ends: a test run may be killed.
                ["setpriv", "--pdeathsig=KILL", program(name) or name, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A job gets what its daemon had unless it says otherwise; the tests' own Stoker is none of its affair.
                env={"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), **self.environment},
                start_new_session=True,
            )

    def _stop(self, key: str) -> None:
        daemon = self._daemons.pop(key)
        daemon.terminate()
        try:
            daemon.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # a slurmd may hang while its controller is gone
            daemon.kill()
            daemon.wait()

    def _steps(self, node: str = "") -> list[psutil.Process]:
        """The processes that hold jobs: they have left their daemon."""
        log = str(self.folder / "log" / f"slurmd.{node}")
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.name().startswith("slurmstepd") and any(file.path.startswith(log) for file in one.open_files()):
                    found.append(one)
        return found

    def stop(self) -> None:
        """End jobs and daemons, the last one first."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--user", self._user, check=False)
            until(lambda: not self._steps(), seconds=STOP_SECONDS)
        for one in self._steps():
            for process in [*one.children(recursive=True), one]:
                with contextlib.suppress(psutil.Error):
                    process.kill()
        for key in reversed(list(self._daemons)):
            self._stop(key)

    def _logs(self) -> str:
        files = sorted((self.folder / "log").iterdir())
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-1500:]}" for file in files)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def absence(names: Sequence[str] = _PROGRAMS) -> str:
    """Why no cluster can be started here; "" where one can."""
    missing = [name for name in names if not program(name)]
    if missing:
        packages = "slurmd slurmctld slurm-client munge slurm-wlm-basic-plugins"
        more = " slurmdbd mariadb-server" if set(missing) & set(_ACCOUNTING) else ""
        return f"not installed: {', '.join(missing)} (Debian: apt-get install {packages}{more})"
    return ""


@contextlib.contextmanager
def running(*, accounting: bool = False) -> Iterator[Cluster]:
    """A cluster that lives as long as the block."""
    # Not pytest's folder: a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="stoker-slurm-"))
    cluster = Cluster(folder, accounting=accounting)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """A cluster without accounting."""
    refuse(absence())
    with running() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def accounted_cluster() -> Iterator[Cluster]:
    """A cluster with accounting."""
    refuse(absence([*_PROGRAMS, *_ACCOUNTING]))
    with running(accounting=True) as cluster:
        yield cluster


def refuse(reason: str) -> None:
    """Skip where there can be no cluster; on CI, where there must be one, fail."""
    if reason and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"CI must have a Slurm cluster: {reason}")
    if reason:
        pytest.skip(reason)
