"""All that a home keeps, as one value: rows, blobs, logs and checkpoints."""

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
    """An open store. `database_uri` and `artifact_uri` are what another process needs to open it too."""

    home: str
    database_uri: str
    artifact_uri: str
    records: Records
    blobs: Blobs
    logs: Logs
    checkpoints: Checkpoints

    def close(self) -> None:
        """Close the database; what is left to do opens it again."""
        self.records.database.close()


def open_store(database_uri: str = "", artifact_uri: str = "", home: str = "") -> Store:
    """The store of these addresses; what is not given lies in `home`. Logs are in `home` wherever the artifacts are.

    They are appended to line by line, which object stores cannot do. Checkpoints are there too: steps write them as
    files.
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
