"""`python -m stoker.integrations.zenml FILE …`: `python FILE …` with `import zenml` served."""

from stoker.core.standins import ZENML

ZENML.run_main("…")
