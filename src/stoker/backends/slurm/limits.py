"""What accounts may have: requests that are larger than their limits can ever give, and how many jobs may be sent now.

A limit that others' jobs use up now is no finding: the job waits for it. Limits are those of
https://slurm.schedmd.com/resource_limits.html, read from `sacctmgr`; where it does not answer, nothing is refused. Pure
but for `Limits`, which asks.

How many jobs a queue takes, a site tells only by refusing a submission. The largest number of jobs that fits is found
by halving, and what does not fit waits until own jobs have left.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.logins import Login
from stoker.backends.slurm.cluster import cluster_facts
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.states import fields_of
from stoker.backends.slurm.values import UNLIMITED, seconds, tres_of
from stoker.core.units import duration_text, size_text
from stoker.core.words import count_text

REASON: Final = re.compile(r"(?:QOS|Assoc)(?:Grp|Max)\w+|Max\w+PerAccount")
"""Reasons for which a job waits for a limit of its QOS or its account."""

_QOS_FIELDS: Final = "Name,Flags,GrpTRES,MaxTRES,MaxTRESPerNode,MaxTRESPU,MaxTRESPA,MaxWall"
_ACCOUNT_FIELDS: Final = "Account,ParentName,User,Partition,DefaultQOS,GrpTRES,MaxTRES,MaxTRESPerNode,MaxWall"
# Kind of limit → of what it is the most, in words, and whether each node counts for itself.
_KINDS: Final[Mapping[str, tuple[str, bool]]] = {
    "GrpTRES": ("all its jobs together", False),
    "MaxTRES": ("one job", False),
    "MaxTRESPerNode": ("one job on a node", True),
    "MaxTRESPU": ("the jobs of one user together", False),
    "MaxTRESPA": ("the jobs of one account together", False),
}
_OF_ACCOUNTS: Final = ("GrpTRES", "MaxTRES", "MaxTRESPerNode")
_LEVELS: Final = 10
"""Accounts above each other that are looked at, at most; a tree that is deeper is damaged."""
_MIB: Final = 1 << 20


@attrs.frozen(kw_only=True)
class JobRequest:
    """What a job asks for, as far as it is known."""

    amounts: Mapping[str, float]
    """By Slurm's names, "cpu", "mem" in MiB, "node", "gres/gpu": of all its nodes."""
    nodes: int | None = 1
    """None where it is not known."""
    seconds: float | None = None
    """Its time limit; None where it is not known."""
    qos: str = ""
    """Empty for the default one of its account."""
    account: str = ""
    """Empty for the user's default one."""
    partitions: tuple[str, ...] = ()
    """Where it may run."""


@attrs.frozen(kw_only=True)
class LimitRow:
    """The limits of one QOS, or of one account or user."""

    name: str
    """In words: "the QOS 'small'"."""
    limits: Mapping[str, Mapping[str, float | None]]
    """Kind → resource → the most; None for a limit that is not understood, which counts and refuses nothing."""
    longest: float | None = None
    """Seconds of a job, at most; None for no limit, and endless for one that is not understood."""
    over_partition: bool = False
    """Whether it goes before the partition's QOS (the flag OverPartQOS)."""


@attrs.frozen(kw_only=True)
class Excess:
    """One resource of which a job asks for more than a limit gives."""

    asks: str
    gives: str
    name: str
    """The resource by Slurm's name; "time" for the time limit."""
    most: float
    """The limit, in seconds for the time."""

    def __str__(self) -> str:
        return f"asks for {self.asks}; {self.gives}"


def excess(request: JobRequest, qos: Sequence[LimitRow], accounts: Sequence[LimitRow]) -> Excess | None:
    """The first part of a request that no limit will ever give; None where it only has to wait.

    `qos` are the partition's and the job's, `accounts` the user's own row and the accounts above it, upwards. Of one
    kind and resource the first QOS counts that has a limit, and only where none has one, the accounts'.
    """
    ordered = sorted(qos, key=lambda row: not row.over_partition)
    for name, amount in request.amounts.items():
        for kind, (whose, per_node) in _KINDS.items():
            if per_node and request.nodes is None:
                continue
            asked = amount / max(1, request.nodes or 1) if per_node else amount
            rows = [row for row in ordered if name in row.limits.get(kind, {})][:1]
            # An account's own most for a job goes before that of the accounts above it; a group's holds at each level.
            above = [row for row in accounts if name in row.limits.get(kind, {})]
            rows = rows or (above if kind == "GrpTRES" else above[:1])
            for row in rows:
                most = row.limits[kind][name]
                if most is not None and asked > most:
                    gives = f"{row.name} gives {whose} {_amount(name, most)} at most ({kind})"
                    on = " on a node" if per_node else ""
                    return Excess(asks=_amount(name, asked) + on, gives=gives, name=name, most=most)
    for row in (*ordered, *accounts):
        if row.longest is None or request.seconds is None:
            continue
        if request.seconds > row.longest:
            gives = f"{row.name} gives one job {duration_text(row.longest)} at most (MaxWall)"
            return Excess(asks=f"{duration_text(request.seconds)} of time", gives=gives, name="time", most=row.longest)
        break  # the first that has a limit is the one that counts
    return None


def job_requests(text: str) -> Iterator[JobRequest]:
    """The requests of the jobs in the output of `scontrol --oneliner show job`."""
    for line in text.splitlines():
        fields = fields_of(line)
        # "TRES" up to 22.05, then "ReqTRES": https://github.com/SchedMD/slurm/blob/master/RELEASE_NOTES
        tres = fields.get("ReqTRES", fields.get("TRES", ""))
        if not fields.get("JobId") or not tres:
            continue
        amounts = {name: amount for name, amount in tres_of(tres).items() if amount is not None}
        limit = seconds(fields.get("TimeLimit", ""))
        yield JobRequest(
            amounts=amounts,
            nodes=int(amounts["node"]) if "node" in amounts else None,
            seconds=None if limit == UNLIMITED else limit,
            qos=_name(fields.get("QOS", "")),
            account=_name(fields.get("Account", "")),
            partitions=tuple(filter(None, _name(fields.get("Partition", "")).split(","))),
        )


class Limits:
    """The limits of a login's cluster; each name is asked for once."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._qos: dict[str, LimitRow | None] = {}
        self._accounts: dict[str, list[dict[str, str]]] = {}
        self._user = ""
        self._refusals: dict[tuple[str, str], str] = {}

    def excess(self, request: JobRequest) -> Excess | None:
        """The first part of a request that can never be given; None also where the limits cannot be read.

        A request that one of its partitions may still run is not refused. Raises `Away` where the cluster does not
        answer.
        """
        partitions = cluster_facts(self._login).partitions
        first = None
        for name in request.partitions or ("",):
            own_qos = partitions[name].qos if name in partitions else ""
            accounts, default_qos = self._account_rows(request, name)
            names = dict.fromkeys(filter(None, (own_qos, request.qos or default_qos)))
            rows = [row for name in names if (row := self._qos_row(name)) is not None]
            above = excess(request, rows, accounts)
            if above is None:
                return None
            first = first or above
        return first

    def refusal(self, job: str, reason: str) -> str:
        """Why a job that waits for `reason` can never begin, in a sentence; empty where it may. `job` is Slurm's id."""
        if not REASON.match(reason):
            return ""
        key = (job.partition("_")[0], reason)
        if key not in self._refusals:
            ran = self._login.run(["scontrol", "--oneliner", "show", "job", key[0]])
            request = next(job_requests(ran.out), None) if not ran.code else None
            above = self.excess(request) if request is not None else None
            change = "ask for less, or name another QOS or account: qos, account"
            self._refusals[key] = f"it can never begin: it {above} ({reason}); {change}" if above else ""
        return self._refusals[key]

    def _qos_row(self, name: str) -> LimitRow | None:
        if name not in self._qos:
            rows = self._ask("show", "qos", f"where name={name}", fields=_QOS_FIELDS)
            self._qos[name] = _limit_row(f"the QOS '{name}'", rows[0], tuple(_KINDS)) if rows else None
        return self._qos[name]

    def _account_rows(self, request: JobRequest, partition: str) -> tuple[list[LimitRow], str]:
        """The user's own limits and those of the accounts above, and the account's usual QOS."""
        user = self._user_name()
        account = request.account or self._default_account(user)
        rows: list[LimitRow] = []
        default_qos = ""
        for level in range(_LEVELS):
            if not account:
                break
            own = [row for row in self._rows_of(account) if row["Partition"] in ("", partition)]
            for row in sorted(own, key=lambda one: not one["Partition"]):
                if level == 0 and row["User"] == user:
                    default_qos = default_qos or row["DefaultQOS"]
                    name = f"the account '{account}' for the user {user}"
                    rows.append(_limit_row(name, row, _OF_ACCOUNTS))
            whole = next((row for row in own if not row["User"]), None)
            if whole is None:
                break
            default_qos = default_qos or whole["DefaultQOS"]
            rows.append(_limit_row(f"the account '{account}'", whole, _OF_ACCOUNTS))
            account = whole["ParentName"]
        return rows, default_qos

    def _rows_of(self, account: str) -> list[dict[str, str]]:
        if account not in self._accounts:
            rows = self._ask("show", "assoc", f"where account={account}", fields=_ACCOUNT_FIELDS)
            self._accounts[account] = [row for row in rows if row["User"] in ("", self._user_name())]
        return self._accounts[account]

    def _default_account(self, user: str) -> str:
        rows = self._ask("show", "user", f"where name={user}", fields="DefaultAccount") if user else []
        return rows[0]["DefaultAccount"] if rows else ""

    def _user_name(self) -> str:
        if not self._user:
            ran = self._login.run(["id", "-un"])
            self._user = ran.out.strip() if not ran.code else ""
        return self._user

    def _ask(self, *words: str, fields: str) -> list[dict[str, str]]:
        """Rows by field; none where there are no accounts, or where a site lets nobody read them."""
        split = [part for word in words for part in word.split(" ")]
        ran = self._login.run(["sacctmgr", "--noheader", "--parsable2", "--readonly", *split, f"format={fields}"])
        names = fields.split(",")
        rows = [line.split("|") for line in ran.out.splitlines()] if not ran.code else []
        return [dict(zip(names, row)) for row in rows if len(row) == len(names)]


def _limit_row(name: str, row: Mapping[str, str], kinds: Iterable[str]) -> LimitRow:
    longest = seconds(row.get("MaxWall", ""))
    return LimitRow(
        name=name,
        limits={kind: tres_of(row.get(kind, "")) for kind in kinds},
        longest=UNLIMITED if longest is None and row.get("MaxWall") else longest,
        over_partition="OverPartQOS" in row.get("Flags", ""),
    )


def _amount(name: str, amount: float) -> str:
    if name == "mem":
        return f"{size_text(int(amount * _MIB))} of memory"
    count = int(amount) if amount == int(amount) else amount
    nouns = {"cpu": "CPU", "node": "node", "gres/gpu": "GPU"}
    if name in nouns:
        return count_text(int(count), nouns[name])
    return f"{count:g} {name}"


def _name(text: str) -> str:
    return "" if text in ("(null)", "N/A") else text


# How many jobs may be sent now

PROBE: Final = 60.0
"""Seconds after a refusal in which a further job is not tried: other jobs of the same user may have left since."""
BUSY: Final = 10.0
"""Seconds for which nothing is sent to a controller that takes no jobs of anybody's now."""
_MINUTE: Final = 60.0
_MANY: Final = 1 << 30


class QueueLimits:
    """The limits of one run's submissions. `live` is how many jobs of the run are in the queue, tasks counted singly;
    times are of the monotonic clock."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._most: int | None = settings.get("max_submit")
        self._rate: float | None = settings.get("submit_rate")
        self._ceiling: int | None = None
        """The most jobs that the site may still take: one more was refused."""
        self._probe_at = float("inf")
        self._probing = False
        self._busy_until = float("-inf")
        self._limit = ""
        """The site's word for its limit."""
        self._submissions: deque[float] = deque()

    def room(self, live: int, now: float) -> int:
        """How many jobs the next submission may have; 0 where none may go now."""
        if now < self._busy_until or self._too_fast(now):
            return 0
        room = _MANY if self._most is None else self._most - live
        if self._ceiling is not None:
            span = self._ceiling - live
            self._probing = span < 1 and now >= self._probe_at
            room = min(room, 1 if self._probing else (span + 1) // 2)
        return max(0, room)

    def accepted(self, now: float) -> None:
        """Note a submission that was taken."""
        self._submissions.append(now)
        if self._probing:
            self._probing, self._ceiling = False, None  # the limit that was known no longer holds

    def refused(self, count: int, live: int, now: float, limit: str) -> None:
        """Note that the site took no further `count` jobs; `limit` is its word for the limit, empty where the whole
        cluster takes none."""
        self._submissions.append(now)
        self._probing = False
        if not limit:
            self._busy_until = now + BUSY
            return
        self._limit, self._ceiling, self._probe_at = limit, live + count - 1, now + PROBE

    def reason(self, live: int, now: float) -> str:
        """A word for the limit that holds; empty where none does."""
        if now < self._busy_until:
            return "MaxJobCount"
        if self._too_fast(now):
            return "submit_rate"
        if self._most is not None and live >= self._most:
            return "max_submit"
        return self._limit if self._ceiling is not None and live >= self._ceiling else ""

    def message(self, waiting: int, live: int, now: float) -> str:
        """Why `waiting` steps are not in the queue; empty where no limit holds."""
        reason = self.reason(live, now)
        steps = f"{count_text(waiting, 'step')} {'waits' if waiting == 1 else 'wait'}"
        if not reason:
            return ""
        if reason == "MaxJobCount":
            return f"the cluster's queue is full, it takes no jobs now: {steps}"
        if reason == "submit_rate":
            return f"submit_rate={self._rate:g} lets no further submission go within this minute: {steps}"
        if reason == "max_submit":
            return f"max_submit={self._most} lets the run have no more jobs in the queue: {steps}"
        most = (
            f"{count_text(self._ceiling or 0, 'job')} in the queue" if self._ceiling else "no further job in the queue"
        )
        return f"the site lets you have {most} now ({reason}): {steps}"

    def _too_fast(self, now: float) -> bool:
        while self._submissions and self._submissions[0] <= now - _MINUTE:
            self._submissions.popleft()
        return self._rate is not None and len(self._submissions) >= self._rate
