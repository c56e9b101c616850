"""What a Python imports as `zenml` that a process with Stoker's hook has started: it installs the hook, too.

In an environment without Stoker, the `zenml` that is installed there is imported.
"""

import importlib
import os
import sys

del sys.modules[__name__]
try:
    from stoker.core.standins import ZENML
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "stoker":
        raise
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    importlib.invalidate_caches()
else:
    ZENML.install()
importlib.import_module("zenml")
