"""What a run may take and cost: its deadline, its budget, and what an hour of machines costs by a price list."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from typing import Any, ClassVar, Final, Literal, Mapping

from stoker.core.errors import SettingsError, UsageError
from stoker.core.settings import StepSettings, demand
from stoker.core.units import positive_duration
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import shown

HOUR: Final = 3600.0
OLD: Final = 30
"""Days after which a price list is said to be old: clouds change prices of accelerators several times a year."""
_BUDGET: Final = lazy_pattern(r"\s*(\d+(?:\.\d+)?)\s*(device[ -]?hours?|USD)\s*")
_GIGABYTE: Final = 1e9


@frozen(kw_only=True)
class Budget:
    """What a run or a sweep may cost."""

    amount: float
    unit: Literal["device hours", "USD"]
    rate: float = 0.0
    """What an hour of one attempt costs, in the unit; of a sweep's."""

    @classmethod
    def parse(cls, text: Any) -> Budget:
        """A budget as a person writes it: "20 device hours", "50 USD"."""
        found = _BUDGET.fullmatch(text) if isinstance(text, str) else None
        if found is None or not float(found[1]):
            raise UsageError(
                f"budget={text!r} is not a budget", fix='write budget="20 device hours" or budget="50 USD"'
            )
        return cls(amount=float(found[1]), unit="USD" if found[2] == "USD" else "device hours")

    def hourly(self, settings: StepSettings, price: float | None) -> float | None:
        """What an hour of one attempt counts, in the unit; None for US dollars without a `price` an hour."""
        if self.unit == "USD":
            return price
        return float(settings.resources.node_count * settings.resources.gpus_per_node)

    def text(self, amount: float) -> str:
        """An amount of the unit in words."""
        return f"{amount:.3g} {self.unit}" if amount < 100 else f"{amount:,.0f} {self.unit}"

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit}"


def parse_budget(value: Any) -> str | None:
    """A budget as text, which `Budget.parse` takes."""
    try:
        if value is not None:
            Budget.parse(value)
        return value if value is None else str(value).strip()
    except UsageError as error:
        raise SettingsError(error.message, fix=error.fix) from None


def parse_deadline(value: Any) -> float | str | None:
    """Seconds after the run's start; or the text of a time of the day or of a moment, as ISO 8601 has them."""
    if value is None:
        return None
    if isinstance(value, (time, datetime)):
        return value.isoformat()
    if isinstance(value, str) and (":" in value or "-" in value):
        for kind in (time, datetime):
            try:
                return kind.fromisoformat(value.strip()).isoformat()
            except ValueError:
                continue
        fix = 'write a time such as "2h", a time of the day such as "18:30", or "2026-11-30T08:00"'
        raise SettingsError(f"{shown(value)} is no deadline", fix=fix)
    return positive_duration(value)


def deadline_of(deadline: float | str, began: float) -> float:
    """When a run that began at a time has to be over, in seconds since the epoch; a time of the day is the next one."""
    if not isinstance(deadline, str):
        return began + deadline
    if "T" in deadline or "-" in deadline.partition("+")[0]:
        return datetime.fromisoformat(deadline).timestamp()
    at = time.fromisoformat(deadline)
    start = datetime.fromtimestamp(began, at.tzinfo)
    moment = datetime.combine(start.date(), at)
    return (moment if moment > start else moment + timedelta(days=1)).timestamp()


@frozen(kw_only=True)
class PriceList:
    """What machines cost, as a person wrote it: US dollars an hour."""

    INFO: ClassVar = ("date", "source")
    each: Mapping[str, float]
    """By what it is an hour of: the model of an accelerator, "cpu" for a core, or "memory" for a GB. An accelerator's
    price is that of its part of the machine, too, unless there are prices of that."""
    date: str
    """The day of the prices, as ISO 8601 has it."""
    source: str
    where: str = ""
    """The place in the file."""

    @classmethod
    def parse(cls, table: Any) -> PriceList:
        """The table `prices` of a stack; raises `SettingsError` for what is no price, and without a date."""
        from stoker.core.accelerators import Accelerator

        fix = 'write {date = "2026-11-01", source = "our contract", H100 = 2.5, cpu = 0.04, memory = 0.005}'
        if not isinstance(table, dict):
            raise SettingsError("prices is not a table", fix=fix)
        try:
            day = date.fromisoformat(str(table.get("date", "")))
        except ValueError:
            raise SettingsError(f"prices has no date of its prices: {shown(table.get('date'))}", fix=fix) from None
        if not isinstance(table.get("source"), str):
            raise SettingsError("prices has no source", fix=fix)
        each = {}
        for name, price in table.items():
            if name in cls.INFO:
                continue
            if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < 1e6:
                raise SettingsError(f"prices.{name} = {shown(price)} is no price in US dollars an hour", fix=fix)
            each[name if name in ("cpu", "memory") else Accelerator.parse(name).name] = float(price)
        return cls(each=each, date=day.isoformat(), source=table["source"])

    def hourly(self, settings: StepSettings) -> float | str:
        """US dollars an hour of one attempt: all nodes, with what the step asks for. In words what has no price.

        Of accelerators in several kinds it is the dearest.
        """
        resources, taken = settings.resources, demand(settings)
        wanted = {"cpu": taken.cpus or resources.get("cpu_count", 0.0), "memory": taken.memory / _GIGABYTE}
        total = 0.0
        for name, amount in wanted.items():
            if amount and name not in self.each and not resources.gpus_per_node:
                return f"a price of {name}"
            total += amount * self.each.get(name, 0.0)
        if resources.gpus_per_node:
            models = [kind.name for kind in resources.get("accelerators", ())]
            missing = [name for name in models if name not in self.each]
            if missing or not models:
                return f"a price of {missing[0]}" if missing else "the model of its accelerators (accelerators=…)"
            total += resources.gpus_per_node * max(self.each[name] for name in models)
        return total * resources.node_count

    def age(self, now: float) -> int:
        """Days since the day of the prices."""
        return (datetime.fromtimestamp(now, timezone.utc).date() - date.fromisoformat(self.date)).days


def age_text(day: str, days: int) -> str:
    """The day of a price and, where that is long ago, how long: "prices of 2026-09-01, 89 days old"."""
    return f"prices of {day}" + (f", {days} days old: look whether they still hold" if days > OLD else "")
