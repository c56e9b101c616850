"""The table of vendors says what their values say."""

from __future__ import annotations

from stoker.core.accelerators import MODELS, VENDORS
from stoker.vendors import registry
from stoker.vendors.table import BUILTIN_VENDORS, NO_DEVICES


def test_the_table_hides_what_each_vendor_hides() -> None:
    for name, row in BUILTIN_VENDORS.items():
        vendor = registry.VENDORS.load(name)
        assert vendor.name == name and vendor.title == VENDORS[name]
        assert not vendor.chips, "models of Stoker's own vendors stand in core.accelerators"
        assert dict(vendor.visibility(())) == dict.fromkeys(row.hiding, "")
    assert registry.environment_of(()) == NO_DEVICES


def test_every_model_is_some_vendors() -> None:
    assert {model.vendor for model in MODELS.values()} <= set(BUILTIN_VENDORS) == set(VENDORS)
