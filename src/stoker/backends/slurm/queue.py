"""Slurm's commands, called on the machine where they are: submit, ask, end. One call for many jobs.

What they print is read by `states`. A controller that does not answer is `Away`; a refusal is told in its words.
"""

from __future__ import annotations

import re
from typing import Collection, Final, Iterable, Mapping, Sequence

from stoker.backends.base.logins import NOT_FOUND, Login, Ran
from stoker.backends.base.platforms import Away
from stoker.backends.slurm.states import ACCOUNT, QUEUE, Row, accounted, compact, rows, shown
from stoker.core.errors import BackendError

PATIENCE: Final = 30.0
"""Seconds that a command gets: a client waits for minutes where its controller is down."""
SUBMIT_PATIENCE: Final = 120.0
"""Seconds for a submission: a busy controller lets sbatch try again by itself."""
KEPT: Final[Mapping[str, str]] = {
    # A variable by which people tell sbatch what they always want → the option that a script has instead.
    # https://slurm.schedmd.com/sbatch.html#SECTION_INPUT-ENVIRONMENT-VARIABLES
    "SBATCH_ACCOUNT": "--account",
    "SBATCH_CLUSTERS": "--clusters",
    "SBATCH_PARTITION": "--partition",
    "SBATCH_QOS": "--qos",
    "SBATCH_RESERVATION": "--reservation",
}
_SUBMIT: Final = r"""
for name in $(env | sed -n -e 's/^\(SBATCH_[A-Z0-9_]*\)=.*/\1/p' -e 's/^\(SLURM_[A-Z0-9_]*\)=.*/\1/p'); do
    case " $2 " in *" $name "*) ;; *) unset "$name" ;; esac
done
cd "$1" || exit 1
id=$(sbatch --parsable script.sh) || exit $?
printf '%s\n' "$id" >submitted.new && mv submitted.new submitted
printf '%s\n' "$id"
"""
"""$1: the folder, $2: variables that stay. All others that begin with SBATCH_ would win against the script, and those
with SLURM_ are of a job that the driver itself is in. The id is written down by who asked for it, so that it stands
there even where nobody waits for the answer any more."""
_CLUSTER: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
"""Which cluster is meant."""
_PLAIN: Final = (
    "env",
    *(
        word
        for command, names in {
            "SQUEUE": ("ACCOUNT", "FEDERATION", "LICENSES", "NAMES", "PARTITION", "QOS", "SORT", "USERS"),
            "SCANCEL": (
                "ACCOUNT",
                "BATCH",
                "FULL",
                "INTERACTIVE",
                "NAME",
                "PARTITION",
                "QOS",
                "STATE",
                "USER",
                "WCKEY",
            ),
        }.items()
        for name in names
        for word in ("-u", f"{command}_{name}")
    ),
)
"""Begins a call that a person's own habits must not narrow: one would hide jobs, another ask before it cancels.
https://slurm.schedmd.com/squeue.html#SECTION_ENVIRONMENT-VARIABLES and scancel's"""
_AWAY: Final = re.compile(
    "unable to contact slurm controller|unable to establish|socket timed out|connection refused|connect failure"
    "|connection failure|connection reset|zero bytes were transmitted|temporarily unable|munge encode failed"
    "|authentication error|can't connect|in standby mode|slurm backup controller",
    re.IGNORECASE,
)
"""https://github.com/SchedMD/slurm/blob/slurm-22-05-8-1/src/common/slurm_errno.c"""
_GONE: Final = re.compile("invalid job id|already completing|job/step already|invalid job array", re.IGNORECASE)
_NO_ACCOUNTS: Final = re.compile("accounting storage is disabled", re.IGNORECASE)
_ALL: Final = 500
"""Jobs above which squeue is asked for all of this person's: a command's line has an end."""


class Controller:
    """Slurm, as its commands on one machine reach it."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._accounts: bool | None = None

    def submit(self, folder: str, script: str) -> str:
        """Hand a folder's script over; the id of the job. `BackendError` with sbatch's words where it is refused."""
        kept = [name for name, option in KEPT.items() if f"#SBATCH {option}" not in script]
        argv = ["sh", "-c", _SUBMIT, "sh", folder, " ".join((*_CLUSTER, *kept))]
        ran = self._login.run(argv, timeout=SUBMIT_PATIENCE)
        if ran.code:
            raise self._error("sbatch", ran)
        return ran.out.strip().splitlines()[-1].partition(";")[0]

    def rows(self, ids: Collection[str]) -> dict[str, Row]:
        """What the controller knows of jobs, by id, of an array by task; those that it does not mention are missing."""
        found = self._queue(["--jobs", ",".join(sorted(ids))] if len(ids) <= _ALL else ["--me"])
        return {row.id: row for row in found if row.id.partition("_")[0] in ids}

    def commented(self, tokens: Collection[str]) -> dict[str, str]:
        """Ids of this person's jobs by their comment; an array has one."""
        found = self._queue(["--me"])
        return {row.comment: row.id.partition("_")[0] for row in found if row.comment in tokens}

    def _queue(self, whose: Sequence[str]) -> list[Row]:
        argv = [*_PLAIN, "squeue", "--noheader", "--states=all", "--array", f"--format={QUEUE}", *whose]
        ran = self._login.run(argv, timeout=PATIENCE)
        if ran.code and not _GONE.search(ran.err):
            raise self._error("squeue", ran)
        return list(rows(ran.out))

    def details(self, ids: Iterable[str]) -> dict[str, Row]:
        """How jobs ended, by id: from the controller's memory, or from the accounts where there are some."""
        found: dict[str, Row] = {}
        ids = sorted(set(ids))
        for id in ids:
            ran = self._login.run(["scontrol", "--oneliner", "show", "job", id], timeout=PATIENCE)
            if ran.code and not _GONE.search(ran.err + ran.out):
                raise self._error("scontrol", ran)
            found.update({row.id: row for row in shown(ran.out)})
        known = {id.partition("_")[0] for id, row in found.items() if row.state != "CANCELLED"}
        rest = [id for id in ids if id not in known]
        if rest and self._accounts is not False:
            for row in self._accounted(rest):
                if row.id not in found or row.by:
                    found[row.id] = row
        return found

    def _accounted(self, ids: Sequence[str]) -> Iterable[Row]:
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--jobs", ",".join(ids), f"--format={ACCOUNT}"]
        ran = self._login.run(argv, timeout=PATIENCE)
        if ran.code == NOT_FOUND or _NO_ACCOUNTS.search(ran.err):
            self._accounts = False
        if ran.code:
            return ()  # they say more than the controller, and nobody depends on them
        self._accounts = True
        return accounted(ran.out)

    def largest_array(self) -> int:
        """How many tasks an array may have: the largest index is one less."""
        ran = self._login.run(["scontrol", "show", "config"], timeout=PATIENCE)
        if ran.code:
            raise self._error("scontrol", ran)
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ran.out, re.MULTILINE)
        return max(1, int(found.group(1))) if found else 1

    def cancel(self, ids: Mapping[str, set[int]]) -> None:
        """End jobs, or tasks of arrays, whatever they do. Those that are gone are fine."""
        self._scancel([], ids)

    def ask(self, ids: Mapping[str, set[int]], *, batch: bool) -> None:
        """Have jobs end by themselves: those that wait leave the queue, those that run get SIGTERM; `batch`: their
        script does, else what it started by srun."""
        self._scancel(["--state=PENDING"], ids)
        self._scancel(["--state=RUNNING", "--signal=TERM", *(["--batch"] if batch else [])], ids)

    def _scancel(self, options: Sequence[str], ids: Mapping[str, set[int]]) -> None:
        ran = self._login.run([*_PLAIN, "scancel", *options, *compact(ids)], timeout=PATIENCE)
        if ran.code and not all(_GONE.search(line) for line in ran.err.splitlines()):
            raise self._error("scancel", ran)

    def _error(self, command: str, ran: Ran) -> BackendError:
        said = (ran.err.strip() or ran.out.strip() or f"exit code {ran.code}").replace("\n", " | ")
        if _AWAY.search(said):
            return Away(f"Slurm's controller does not answer: {said}")
        if ran.code == NOT_FOUND:
            fix = 'start the pipeline on a login node, or name one: host = "ssh://login.example.org"'
            return BackendError(f"there is no {command} where Slurm's commands are called: {said}", fix=fix)
        return BackendError(f"{command} refused: {said}")
