"""What a Python imports as `metaflow_extensions` that a process with Stoker's hook has started: the hook answers."""

import importlib
import sys

del sys.modules[__name__]
importlib.import_module("metaflow")
importlib.import_module("metaflow_extensions")
