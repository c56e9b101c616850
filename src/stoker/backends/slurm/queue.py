"""Calls Slurm's commands by a login: submits, queries and ends jobs, many with one call.

`states` reads what they print. A controller that does not answer is `Away`; a refusal is an error with Slurm's words.
"""

from __future__ import annotations

import re
from typing import Collection, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.logins import NOT_FOUND, Login, Ran
from stoker.backends.base.platforms import Answers, Away
from stoker.backends.slurm.states import (
    ACCOUNT,
    IN_UTC,
    QUEUE,
    JobRow,
    compact,
    sacct_rows,
    scontrol_rows,
    squeue_rows,
)
from stoker.core.errors import BackendError

PATIENCE: Final = 30.0
"""Seconds that a command gets: clients wait for minutes while the controller is down."""
SUBMIT_PATIENCE: Final = 120.0
"""Seconds that a submission gets: sbatch itself tries again while the controller is busy."""
KEPT: Final[Mapping[str, str]] = {
    # A variable by which users set a default of sbatch → the option of a script that replaces it.
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
sbatch --parsable script.sh >answer 2>refusal </dev/null &
sbatch=$!
while sleep 0.5 && kill -0 $sbatch; do ! grep -q 'sleeping and retrying' refusal || kill $sbatch; done >/dev/null 2>&1 &
wait $sbatch
code=$?
kill $! 2>/dev/null
[ ! -s refusal ] || cat refusal >&2
[ $code -eq 0 ] && read -r id <answer || exit $((code ? code : 1))
printf '%s\n' "$id" >submitted.new && mv submitted.new submitted
printf '%s\n' "$id"
"""
"""$1: the folder, $2: variables that stay. All others that begin with SBATCH_ would override the script, and those with
SLURM_ belong to a job that the driver itself runs in. This shell writes the id into a file, so that it is there even if
the driver no longer waits for the answer. An sbatch that waits for a full queue is ended: it would wait for minutes."""
_TOKEN: Final = re.compile(r"^#SBATCH .*--comment=(?:.*\s)?([0-9a-f]{16})'?$", re.MULTILINE)
"""The last word of a script's comment."""
_CLUSTER: Final = ("SLURM_CONF", "SLURM_CLUSTERS")
"""Variables that select the cluster."""
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
"""The beginning of a call without a user's own defaults: one would hide jobs, another ask before it cancels.
https://slurm.schedmd.com/squeue.html#SECTION_ENVIRONMENT-VARIABLES and scancel's"""
_AWAY: Final = re.compile(
    "unable to contact slurm controller|unable to establish|socket timed out|connection refused|connect failure"
    "|connection failure|connection reset|zero bytes were transmitted|temporarily unable|munge encode failed"
    "|authentication error|can't connect|in standby mode|slurm backup controller",
    re.IGNORECASE,
)
"""https://github.com/SchedMD/slurm/blob/slurm-22-05-8-1/src/common/slurm_errno.c"""
_LIMIT: Final = re.compile(r"\b(?:QOS|Assoc)\w*Submit\w*Limit\b")
"""https://slurm.schedmd.com/resource_limits.html; the words are those of
https://github.com/SchedMD/slurm/blob/slurm-22-05-8-1/src/slurmctld/acct_policy.c"""
_FULL: Final = re.compile("unable to accept job, sleeping|queue full, sleeping", re.IGNORECASE)
"""https://github.com/SchedMD/slurm/blob/slurm-22-05-8-1/src/sbatch/sbatch.c"""
_GONE: Final = re.compile("invalid job id|already completing|job/step already|invalid job array", re.IGNORECASE)
_NO_ACCOUNTS: Final = re.compile("accounting storage is disabled", re.IGNORECASE)
_ALL: Final = 500
"""Jobs above which squeue lists all of the user's, since a command line has a limit."""


class QueueFull(BackendError):
    """A submission has no place in the queue now; it may be repeated. `limit` is the site's word for a limit of the
    user's, empty where the whole cluster takes no jobs: then the job may be in the queue all the same."""

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class Controller:
    """Slurm's controller, by the commands of one login."""

    def __init__(self, login: Login, answers: Answers | None = None, *, patience: float = PATIENCE) -> None:
        self._login = login
        self.answers = Answers("Slurm's controller") if answers is None else answers
        self._patience = patience
        self._accounts: bool | None = None

    def submit(self, folder: str, script: str) -> str:
        """Submit a folder's script; returns the job's id. `BackendError` with sbatch's words where it is refused,
        `QueueFull` where it may be repeated later."""
        names = [name for name, option in KEPT.items() if f"#SBATCH {option}" not in script]
        argv = ["sh", "-c", _SUBMIT, "sh", folder, " ".join((*_CLUSTER, *names))]
        with self.answers.question("sbatch"):
            ran = self._login.run(argv, timeout=SUBMIT_PATIENCE)
            limit = _LIMIT.search(ran.err)
            if ran.code and (limit is not None or _FULL.search(ran.err)):
                raise QueueFull(f"sbatch refused: {ran.err.strip()}", limit[0] if limit is not None else "")
            if ran.code:
                raise self._error("sbatch", ran)
            # The last line is "ID" or "ID;CLUSTER"; a wrapper of the site's may print others before it.
            id = (ran.out.strip().splitlines() or [""])[-1].partition(";")[0]
        return id if id.isdecimal() else self._id_in_queue(script, ran)

    def _id_in_queue(self, script: str, ran: Ran) -> str:
        """The id of a job that sbatch took without printing it, by its comment; `BackendError` where there is none."""
        token = _TOKEN.search(script)
        id = self.ids_by_comment([token[1]]).get(token[1], "") if token is not None else ""
        if not id:
            raise BackendError(
                f"sbatch printed {ran.out.strip()[-500:]!r} and no job's id, and the queue has no such job",
                fix="call sbatch by hand, and see whether another program of that name stands before it on PATH",
            )
        return id

    def rows(self, ids: Collection[str]) -> dict[str, JobRow]:
        """The queue's rows by job id, of arrays by task; jobs that the queue does not have are missing."""
        rows = self._queue(["--jobs", ",".join(sorted(ids))] if len(ids) <= _ALL else ["--me"])
        return {row.id: row for row in rows if row.id.partition("_")[0] in ids}

    def ids_by_comment(self, tokens: Collection[str]) -> dict[str, str]:
        """The ids of the user's jobs by the last word of their comments; an array has one id."""
        ids = {}
        for row in self._queue(["--me"]):
            token = row.comment.rpartition(" ")[2]
            if token in tokens:
                ids[token] = row.id.partition("_")[0]
        return ids

    def _queue(self, whose: Sequence[str]) -> list[JobRow]:
        argv = [*_PLAIN, "squeue", "--noheader", "--states=all", "--array", f"--format={QUEUE}", *whose]
        with self.answers.question("squeue"):
            ran = self._login.run(argv, timeout=self._patience)
            if ran.code and not _GONE.search(ran.err):
                raise self._unreadable("squeue", ran)
        return list(squeue_rows(ran.out))

    def details(self, ids: Iterable[str]) -> dict[str, JobRow]:
        """How jobs ended, by id: from the controller, or from the accounts if the site keeps them."""
        details: dict[str, JobRow] = {}
        ids = sorted(set(ids))
        for id in ids:
            with self.answers.question("scontrol"):
                ran = self._login.run([*IN_UTC, "scontrol", "--oneliner", "show", "job", id], timeout=self._patience)
                if ran.code and not _GONE.search(ran.err + ran.out):
                    raise self._unreadable("scontrol", ran)
            details.update({row.id: row for row in scontrol_rows(ran.out)})
        answered = {id.partition("_")[0] for id, row in details.items() if row.state != "CANCELLED"}
        open_ids = [id for id in ids if id not in answered]
        if open_ids and self._accounts is not False:
            for row in self._account_rows(open_ids):
                if row.id not in details or row.by:
                    details[row.id] = attrs.evolve(row, by=self._user_name(row.by)) if row.by else row
        return details

    def _user_name(self, uid: str) -> str:
        """The name of a user where Slurm's commands are called; the uid where that knows none."""
        ran = self._login.run(["id", "-nu", uid], timeout=self._patience)
        return ran.out.strip() if ran.code == 0 and ran.out.strip() else uid

    def _account_rows(self, ids: Sequence[str]) -> Iterable[JobRow]:
        options = ["--noheader", "--parsable2", "--allocations", "--jobs", ",".join(ids), f"--format={ACCOUNT}"]
        ran = self._login.run([*IN_UTC, "sacct", *options], timeout=self._patience)
        if ran.code == NOT_FOUND or _NO_ACCOUNTS.search(ran.err):
            self._accounts = False
        if ran.code:
            return ()  # accounts are optional: they only say more than the controller
        self._accounts = True
        return sacct_rows(ran.out)

    def largest_array(self) -> int:
        """The most tasks of an array; the largest index is one less."""
        with self.answers.question("scontrol"):
            ran = self._login.run(["scontrol", "show", "config"], timeout=self._patience)
            if ran.code:
                raise self._error("scontrol", ran)
        match = re.search(r"^MaxArraySize\s*=\s*([0-9]{1,20})", ran.out, re.MULTILINE)
        return max(1, int(match.group(1))) if match else 1

    def cancel(self, ids: Mapping[str, set[int]]) -> None:
        """End jobs, or tasks of arrays, at once; jobs that are gone are no error."""
        self._scancel([], ids)

    def withdraw(self, ids: Mapping[str, set[int]]) -> None:
        """End those of the jobs that wait in the queue; those that have begun go on."""
        self._scancel(["--state=PENDING"], ids)

    def ask(self, ids: Mapping[str, set[int]], *, batch: bool) -> None:
        """Ask jobs to end: waiting ones leave the queue, running ones get SIGTERM; with `batch` their script gets it,
        else the steps that it started by srun."""
        self._scancel(["--state=PENDING"], ids)
        self._scancel(["--state=RUNNING", "--signal=TERM", *(["--batch"] if batch else [])], ids)

    def _scancel(self, options: Sequence[str], ids: Mapping[str, set[int]]) -> None:
        with self.answers.question("scancel"):
            ran = self._login.run([*_PLAIN, "scancel", *options, *compact(ids)], timeout=self._patience)
            if ran.code and not all(_GONE.search(line) for line in ran.err.splitlines()):
                raise self._unreadable("scancel", ran)

    def _unreadable(self, command: str, ran: Ran) -> Away:
        """The error of a command that answered something else than it should: jobs go on, so it is asked again."""
        error = self._error(command, ran)
        if isinstance(error, Away):
            return error
        words = (ran.err.strip() or ran.out.strip() or "nothing").replace("\n", " | ")[-500:]
        return Away(
            f"{command} printed {words!r} (exit code {ran.code}), which is no answer of Slurm's: call it by hand, and "
            "see whether another program of that name stands before it on PATH"
        )

    def _error(self, command: str, ran: Ran) -> BackendError:
        text = (ran.err.strip() or ran.out.strip() or f"exit code {ran.code}").replace("\n", " | ")
        if _AWAY.search(text):
            return Away(f"Slurm's controller does not answer: {text}")
        if ran.code == NOT_FOUND:
            fix = 'start the pipeline on a login node, or name one: host = "ssh://login.example.org"'
            return BackendError(f"there is no {command} where Slurm's commands are called: {text}", fix=fix)
        return BackendError(f"{command} refused: {text}")


def refusal_text(error: BackendError, avoid: Collection[str]) -> str:
    """Why jobs cannot be sent, perhaps because of the nodes that they must avoid."""
    text = f"{error.message}; {error.fix}" if error.fix else error.message
    return f"no other node is left beside {', '.join(avoid)}, where attempts failed: {text}" if avoid else text
