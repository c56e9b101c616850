"""A store as one value: rows, blobs, logs and checkpoints."""

from __future__ import annotations

import os

import attrs

from stoker.store.blobs import Blobs
from stoker.store.checkpoints import Checkpoints
from stoker.store.database import Database
from stoker.store.logs import Logs
from stoker.store.records import Records


@attrs.frozen(kw_only=True)
class Store:
    """An open store."""

    home: str
    """The folder of logs, checkpoints, and by default of everything else."""
    database_uri: str
    """With `artifact_uri` and `home`, another process opens the same store."""
    artifact_uri: str
    records: Records
    blobs: Blobs
    logs: Logs
    checkpoints: Checkpoints

    def close(self) -> None:
        """Close the database; the next use opens it again."""
        self.records.database.close()


def open_store(database_uri: str = "", artifact_uri: str = "", home: str = "") -> Store:
    """Open the store at these addresses; both default to folders in `home`.

    Logs are always in `home`, because object stores cannot append lines, and so are checkpoints, because steps write
    them as files.
    """
    home = os.path.abspath(home or ".stoker")
    database_uri = database_uri or f"sqlite://{home}/stoker.db"
    blobs = Blobs(artifact_uri or f"{home}/artifacts")
    database = Database(database_uri)
    return Store(
        home=home,
        database_uri=database_uri,
        artifact_uri=blobs.uri,
        records=Records(database),
        blobs=blobs,
        logs=Logs(os.path.join(home, "logs")),
        checkpoints=Checkpoints(os.path.join(home, "checkpoints")),
    )
