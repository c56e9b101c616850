"""The plan of a run that goes on: what a later session made of it is what the run needs from then on."""

from __future__ import annotations

from stoker.store.database import Database


def rewrite(database: Database, run: str, plan: str) -> None:
    """Put another plan in the place of a run's own, for whoever has taken the run over."""
    database.change(database.sql("UPDATE plans SET plan = ? WHERE run_id = ?"), (plan, run))
