"""The tables of docs/guide/accelerators.md: what each backend makes of each kind of accelerator, and what each vendor's
tools tell. Both are made by asking the code; UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.backends.fields import ROWS
from tests.backends.test_every_field import SITE, job_of

from stoker.backends.base.backend import Services
from stoker.backends.base.leasing import Leasing
from stoker.backends.registry import BACKENDS
from stoker.core.accelerators import MODELS
from stoker.core.devices import Device, Inventory
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation
from stoker.vendors.base import Vendor
from stoker.vendors.registry import VENDORS
from stoker.worker.processes import this_process

PAGE = "docs/guide/accelerators.md"
BEGIN, END = "<!-- written by tests/backends/test_accelerators_page.py -->", "<!-- as far as here -->"
ASKED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # The words of the request, the simulated devices of this machine, the request.
    'accelerators="H100:8"': ("8xH100", {"accelerators": "H100:8"}),
    'accelerators="A100-80GB/1g.10gb"': ("2xA100-80GB/1g.10gb", {"accelerators": "A100-80GB/1g.10gb"}),
    'gpu_memory="10GB", share=True': ("1xH100", {"gpu_memory": "10GB", "share": True}),
    'accelerators="MI300X:8"': ("8xMI300X", {"accelerators": "MI300X:8"}),
    'accelerators="trainium:16"': ("16xtrainium", {"accelerators": "trainium:16"}),
    'accelerators="inferentia2:1"': ("1xinferentia2", {"accelerators": "inferentia2:1"}),
    'accelerators="tpu-v5e:8"': ("8xtpu-v5e", {"accelerators": "tpu-v5e:8"}),
    'accelerators="tpu-v5e:4", nodes=4': ("4xtpu-v5e", {"accelerators": "tpu-v5e:4", "nodes": 4}),
    'accelerators="Gaudi2:8"': ("8xGaudi2", {"accelerators": "Gaudi2:8"}),
    'accelerators="Max1550:2"': ("2xMax1550", {"accelerators": "Max1550:2"}),
    'gpu_vendor="intel"': ("", {"gpu_vendor": "intel", "gpu_count": 1}),
}
TYPES = ["p5.48xlarge", "trn1.32xlarge", "inf2.xlarge"]
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    # One queue for each kind that AWS has; the others are of the row.
    "batch": {"queue": None, "queues": {name.partition(".")[0]: [name] for name in TYPES}},
}


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a backend makes of a request, on a machine that has the devices."""
    for name in ("DOCKER_HOST", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # no registry is asked
    me = this_process()

    def asked(flavor: str, machine: str, words: Mapping[str, Any]) -> str:
        there = _inventory(machine)
        ledger = Ledger(lambda: there, lambda _: (), folder=tmp_path / f"leases-{flavor}-{machine.replace('/', '-')}")
        leasing = Leasing(
            lambda: ledger, process=(int(me["pid"]), float(me["started"])), scratch=str(tmp_path), limits=True
        )
        row = ROWS[flavor]
        options = {name: value for name, value in {**row.options, **OPTIONS.get(flavor, {})}.items() if value}
        job = job_of(row, StepSettings(resources=ResourceSettings(**words)))
        backend = BACKENDS.load(flavor).open(SITE, options, Services(leasing=leasing))
        try:
            return _word(list(backend.check(job.step)))
        finally:
            backend.close()

    return asked


def _inventory(machine: str) -> Inventory:
    """Devices that are there, as a probe finds them; Intel's, which cannot be simulated, as their own."""
    if not machine:
        return Inventory()
    count, _, name = machine.partition("x")
    vendor = MODELS[name.partition("/")[0]].vendor
    if VENDORS.load(vendor).simulation is None:
        memory = MODELS[name].memory[0]
        cards = [f"{vendor}-{index}" for index in range(int(count))]
        return Inventory(
            devices=tuple(
                Device(kind=vendor, index=index, uuid=uuid, name=name, model=name, memory=memory)
                for index, uuid in enumerate(cards)
            )
        )
    found = parse_simulation(machine)
    return attrs.evolve(found, devices=tuple(attrs.evolve(one, simulated=False) for one in found.devices))


def _word(findings: list[Finding]) -> str:
    for level, label in (("error", "refused"), ("translated", "translated")):
        for finding in findings:
            if finding.level == level:
                return f"{label} [{finding.code}](../findings.md#{finding.code.lower()})"
    return "honoured"


def backend_table(cell: Any) -> str:
    """A row for each request, a column for each backend."""
    lines = [f"| request | {' | '.join(row.title for row in ROWS.values())} |", "|" + "---|" * (len(ROWS) + 1)]
    for words, (machine, resources) in ASKED.items():
        lines.append(f"| `{words}` | {' | '.join(cell(flavor, machine, resources) for flavor in ROWS)} |")
    return "\n".join(lines)


def vendor_table() -> str:
    """A row for each vendor: what of it Stoker's code has."""
    heads = (
        "vendor",
        "found",
        "a step sees its own by",
        "gate",
        "measured",
        "counted faults",
        "containers",
        "simulated",
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, vendor in VENDORS.parts():
        lines.append(f"| {vendor.title} (`{name}`) | {' | '.join(_vendor_cells(vendor))} |")
    return "\n".join(lines)


def _vendor_cells(vendor: Vendor) -> list[str]:
    one = Device(kind=vendor.name, index=0, uuid=f"{vendor.name}-0", name="", model="", memory=0)
    variables = dict(vendor.visibility((one,)))
    default = {field.name: field.default for field in attrs.fields(Vendor)}
    has = {
        name: getattr(vendor, name) is not default[name]
        for name in ("prove", "meter", "health", "container", "simulation")
    }
    unknown = "unknown"
    return [
        _found_by(vendor),
        ", ".join(f"`{variable}`" for variable in variables) or unknown,
        "proves" if has["prove"] else "`unproved`",
        "yes" if vendor.meter is not None else f"`{unknown}`",
        "yes" if has["health"] else unknown,
        "yes" if vendor.container is not None or vendor.toolkit else "refused",
        "yes" if vendor.simulation is not None else "no",
    ]


def _found_by(vendor: Vendor) -> str:
    """Whether its probe looks for anything: one that does reads files of the machine or asks a tool."""
    names = set(vendor.probe.__code__.co_names)
    return "yes" if names - {"Inventory"} else "no"


def test_the_page_has_what_the_code_does(cell: Any, repository: Path) -> None:
    path = repository / PAGE
    page = path.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, found, foot = rest.partition(END)
    assert found, f"{PAGE} has no place for the tables"
    expected = f"{head}{BEGIN}\n\n{backend_table(cell)}\n\n{vendor_table()}\n\n{END}{foot}"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(expected, encoding="utf-8")
    assert expected == path.read_text(encoding="utf-8")


def test_every_vendor_has_a_row(cell: Any) -> None:
    """A vendor that is added is asked for, and so is a backend."""
    asked = {
        wanted.get("accelerators")[0].model.vendor if wanted.get("accelerators") else wanted.get("gpu_vendor", "nvidia")
        for wanted in (ResourceSettings(**words) for _, words in ASKED.values())
    }
    assert asked == {name for name, _ in VENDORS.parts()} - {"apple"}, "Apple's GPU is on this machine alone"


def test_the_table_notices_a_refusal(cell: Any) -> None:
    assert cell("batch", "", {"accelerators": "MI300X:8"}).startswith("refused")
    assert cell("sagemaker", "", {"accelerators": "A100:1"}).startswith("refused")
    assert cell("local", "", {"accelerators": "H100:1"}).startswith("refused"), "this machine has none"
    assert cell("local", "1xH100", {"accelerators": "H100:1"}) == "honoured"
    with pytest.raises(SettingsError):
        cell("local", "", {"accelerators": "H1000:1"})
