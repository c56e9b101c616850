"""Times, amounts, GRES and TRES of Slurm over the whole of their grammars, which are written down here from their
specifications."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.backends.slurm.limits import JobRequest, LimitRow, excess, job_requests
from stoker.backends.slurm.settings import parse_time
from stoker.backends.slurm.states import scontrol_rows, squeue_rows
from stoker.backends.slurm.values import UNLIMITED, Gres, amount, gres_of, mebibytes, seconds, tres_of
from stoker.core.errors import SettingsError

# https://slurm.schedmd.com/sbatch.html#OPT_time: "minutes", "minutes:seconds", "hours:minutes:seconds", "days-hours",
# "days-hours:minutes" and "days-hours:minutes:seconds". What commands print can be read again in the same way.

FORMS = {
    "{m}": 0b0100,
    "{m}:{s}": 0b0101,
    "{h}:{m}:{s}": 0b0111 | 0b10000,
    "{d}-{h}": 0b1010,
    "{d}-{h}:{m}": 0b1110,
    "{d}-{h}:{m}:{s}": 0b1111,
}
NUMBERS = st.integers(0, 10**6)


def field(number: int, width: int) -> str:
    return str(number).rjust(width, "0")


@given(st.sampled_from(list(FORMS)), NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 3))
@example("{d}-{h}", 7, 12, 0, 0, 1)
@example("{m}", 0, 0, 30, 0, 1)
def test_every_time_has_its_seconds(form: str, d: int, h: int, m: int, s: int, width: int) -> None:
    text = form.format(**{name: field(number, width) for name, number in zip("dhms", (d, h, m, s))})
    factors = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    expected = sum(number * factors[name] for name, number in zip("dhms", (d, h, m, s)) if f"{{{name}}}" in form)
    assert seconds(text) == expected
    if ":" in text or "-" in text:
        if expected:
            assert parse_time(text) == expected
        else:
            with pytest.raises(SettingsError):
                parse_time(text)


@pytest.mark.parametrize("text", ["UNLIMITED", "unlimited", "INFINITE", "infinite"])
def test_no_limit(text: str) -> None:
    assert seconds(text) == UNLIMITED == amount(text)


# The words of `squeue`, `sacct`, `scontrol` and `sinfo` where no time is told, and other texts that are none.
@pytest.mark.parametrize(
    "text",
    [
        "INVALID", "NOT_SET", "Partition_Limit", "Unknown", "NONE", "N/A", "n/a", "(null)", "", "-", ":", "1:", ":30",
        "1-", "-1", "1-2-3", "1:2:3:4", "1-1:2:3:4", "1h", "30m", "1.5", "٣٠", " 30", "1:-2", "9" * 21, "1e3",
    ],
)  # fmt: skip
def test_what_is_no_time_is_unknown(text: str) -> None:
    assert seconds(text) is None
    with pytest.raises(SettingsError):
        parse_time(text if text not in ("1h", "30m", "1.5") else "no time")


# Amounts as `convert_num_unit` writes them: a number, with two decimals where it is not whole, and the suffix of a
# power of 1024. https://slurm.schedmd.com/sinfo.html#OPT_noconvert; https://slurm.schedmd.com/gres.conf.html#OPT_Count

POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
WHOLE = st.integers(0, 2**64 - 1).map(str)
DECIMAL = st.tuples(st.integers(0, 2**20), st.integers(0, 99)).map(lambda parts: f"{parts[0]}.{parts[1]:02}")


@given(WHOLE | DECIMAL, st.sampled_from(list(POWERS)), st.booleans())
@example("2", "K", False)
@example("1.50", "K", False)
@example("3", "P", False)
def test_every_amount_has_its_value(number: str, suffix: str, small: bool) -> None:
    text = number + (suffix.lower() if small else suffix)
    found = amount(text)
    exactly = Fraction(number) * 1024 ** POWERS[suffix]
    assert found == pytest.approx(float(exactly), rel=1e-12)
    if "." not in number:
        assert found == exactly and isinstance(found, int)
    memory = mebibytes(text)
    if suffix:
        assert memory == pytest.approx(float(exactly / 1024**2), rel=1e-12)
    else:
        assert memory == found, "without a suffix it is in MiB"


@pytest.mark.parametrize(
    "text", ["", "4+", "+4", "-4", "4X", "4KB", "4Ki", "K", "4 K", ".5", "4.", "1-4", "N/A", "(null)", "٤", "9" * 21]
)
def test_what_is_no_amount_is_unknown(text: str) -> None:
    assert amount(text) is mebibytes(text) is None


# https://slurm.schedmd.com/slurm.conf.html#OPT_Gres_1 and sinfo's %G:
# <name>[:<type>][:no_consume][:<count>][(S:<sockets>)]

NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8).filter(lambda text: text != "no_consume")
TYPES = st.sampled_from(["", "h100", "nvidia_h100_80gb_hbm3", "a100_1g.10gb", "1g.10gb", "tesla-v100", "lustre"])
COUNTS = st.tuples(st.integers(0, 10**6), st.sampled_from(list(POWERS)))
ENTRIES = st.tuples(
    NAMES, TYPES, st.booleans(), st.none() | COUNTS, st.sampled_from(["", "(S:0)", "(S:0-1)", "(S:0,1,3-5)", "(CPU:0)"])
)


@given(st.lists(ENTRIES, max_size=4))
@example([("gpu", "a100", False, (2, ""), "(S:0-1)")])
@example([("nvme", "", True, (3, "P"), "")])
def test_every_resource_has_its_count(entries: list[Any]) -> None:
    texts, expected = [], []
    for name, type, consumes_not, counted, sockets in entries:
        words = [name, type, "no_consume" if consumes_not else ""]
        count = 1 if counted is None else counted[0] * 1024 ** POWERS[counted[1]]
        words.append("" if counted is None else f"{counted[0]}{counted[1]}")
        texts.append(":".join(filter(None, words)) + sockets)
        expected.append(Gres(name=name, type=type, count=count))
    assert gres_of(",".join(texts)) == tuple(expected)


@pytest.mark.parametrize("text", ["", "(null)", "N/A", "n/a"])
def test_no_resources(text: str) -> None:
    assert gres_of(text) == ()


@pytest.mark.parametrize("count", ["4X", "9" * 21, "12345678901234567890123K"])
def test_a_count_that_is_not_understood_is_unknown(count: str) -> None:
    assert gres_of(f"gpu:h100:{count}(S:0-1)") == (Gres(name="gpu", type="h100", count=None),)


# https://slurm.schedmd.com/tres.html, and sacctmgr's limits: name[/type][:kind]=count

TRES = st.sampled_from(["cpu", "node", "billing", "energy", "gres/gpu", "gres/gpu:a100", "license/ansys", "fs/disk"])


@given(st.dictionaries(TRES, st.tuples(WHOLE, st.sampled_from(list(POWERS)))), st.none() | st.integers(0, 2**40))
def test_every_tres_has_its_amount(counts: dict[str, tuple[str, str]], memory: int | None) -> None:
    texts = [f"{name}={number}{suffix}" for name, (number, suffix) in counts.items()]
    expected = {name: int(number) * 1024 ** POWERS[suffix] for name, (number, suffix) in counts.items()}
    if memory is not None:
        texts.append(f"mem={memory}M")
        expected["mem"] = memory
    assert tres_of(",".join(texts)) == expected


def test_tres_without_an_amount() -> None:
    assert tres_of("") == tres_of("(null)") == tres_of("N/A") == {}
    assert tres_of("cpu=-1,node=2") == {"node": 2}, "-1 takes a limit back"
    assert tres_of("mem=4X,cpu=many,gres/gpu=8,gres/gpu:h100=8") == {
        "mem": None, "cpu": None, "gres/gpu": 8, "gres/gpu:h100": 8,
    }  # fmt: skip
    assert tres_of("mem=1.5T,bb/datawarp=4G") == {"mem": 1.5 * 2**20, "bb/datawarp": 4096}


def test_a_limit_that_is_not_understood_counts_and_refuses_nothing() -> None:
    def row(name: str, cpus: float | None, longest: float | None) -> LimitRow:
        return LimitRow(name=name, limits={"MaxTRES": {"cpu": cpus}, "MaxTRESPerNode": {"cpu": 2}}, longest=longest)

    asked = JobRequest(amounts={"cpu": 8}, nodes=None, seconds=7200)
    account = row("the account", 4, 3600)
    assert (found := excess(asked, [], [account])) is not None and found.most == 4
    unknown = row("the QOS", None, UNLIMITED)
    assert excess(asked, [unknown], [account]) is None, "the QOS goes before the account, whatever it says"
    job = "JobId=12 JobState=PENDING TimeLimit=Partition_Limit TRES=cpu=4,mem=4X,node=few"
    (request,) = job_requests(job)
    assert (request.amounts, request.nodes, request.seconds) == ({"cpu": 4}, None, None)


# https://slurm.schedmd.com/job_state_codes.html; sacct adds who cancelled a job, and a narrow column a "+".

SUFFIXES = st.sampled_from(["", "+", " by 1000"])
CODES = st.integers(0, 2**32 - 1)


@given(st.sampled_from(["COMPLETED", "CANCELLED", "TIMEOUT", "SHINY_NEW"]), SUFFIXES, CODES, CODES)
def test_states_and_exit_codes(state: str, suffix: str, code: int, signal: int) -> None:
    (row,) = squeue_rows(f"12|{state}{suffix}|N/A|(null)||main|None")
    assert row.state == state
    (row,) = scontrol_rows(
        f"JobId=12 JobState={state} ExitCode={code}:{signal} TimeLimit=Partition_Limit EndTime=Unknown"
    )
    assert (row.state, row.code, row.signal, row.limit, row.ended) == (state, code, signal, "", None)
    assert row.stage == ("running" if state == "SHINY_NEW" else "over")


@pytest.mark.parametrize("text", ["", "0", "0:", "x:0", "1:2:3", "-1:0", "9" * 21 + ":0"])
def test_an_exit_code_that_is_none_is_unknown(text: str) -> None:
    (row,) = scontrol_rows(f"JobId=12 JobState=FAILED ExitCode={text}")
    assert (row.code, row.signal) == (None, 0)
