"""ZenML's names on Stoker: `from stoker.integrations.zenml import step, pipeline, Client`.

`install()` lets `import zenml` mean this package, here and in processes that start here, so that an unchanged project
runs; `python -m stoker.integrations.zenml FILE …` does the same without a change in the file. Modules below this one
have ZenML's names, too: `migrate.zenml` says which names there are and where they live, and `served` finds them. What
is not carried may be imported and named in an annotation; whoever uses it reads one sentence and the nearest thing.
"""

from __future__ import annotations

from typing import Any

from stoker.core.standins import ZENML
from stoker.integrations.zenml.parts import served

install = ZENML.install
served.serve(__name__)


def __getattr__(name: str) -> Any:
    value = globals()[name] = served.value_of("", name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *served.names()})
