"""A store as one value: rows, names, blobs, logs and checkpoints."""

from __future__ import annotations

import os

from stoker.core.values import frozen
from stoker.store import access
from stoker.store.access import prepare_home
from stoker.store.blobs import Blobs
from stoker.store.checkpoints import Checkpoints
from stoker.store.database import Database
from stoker.store.logcopies import LogCopies
from stoker.store.logs import Logs
from stoker.store.records import Records
from stoker.store.registry import Names


@frozen(kw_only=True)
class Store:
    """An open store."""

    home: str
    """The folder of logs, checkpoints, and by default of everything else."""
    database_uri: str
    """With `artifact_uri` and `home`, another process opens the same store."""
    artifact_uri: str
    records: Records
    registry: Names
    blobs: Blobs
    logs: Logs
    checkpoints: Checkpoints

    @property
    def is_foreign(self) -> bool:
        """Whether its database or its artifacts are files of another user; what has no local files is not foreign."""
        database = self.database_uri.removeprefix("sqlite://")
        paths = [self.home, *(path for path in (database, self.artifact_uri) if "://" not in path)]
        return any(access.is_foreign(path) for path in paths)

    def close(self) -> None:
        """Close the database, and connections to artifacts elsewhere; the next use opens them again."""
        self.records.database.close()
        self.blobs.close()


def open_store(database_uri: str = "", artifact_uri: str = "", home: str = "", *, shared: bool = False) -> Store:
    """Open the store at these addresses; both default to folders in `home`.

    Logs are always in `home`, because object stores cannot append lines, and so are checkpoints, because steps write
    them as files. Logs of a run that was driven in another home are brought there when they are read. A new home is its
    owner's alone, or with `shared` its group's.
    """
    home = os.path.abspath(home or ".stoker")
    prepare_home(home, shared=shared)
    database_uri = database_uri or f"sqlite://{home}/stoker.db"
    blobs = Blobs(artifact_uri or f"{home}/artifacts")
    records = Records(Database(database_uri))
    logs = os.path.join(home, "logs")
    return Store(
        home=home,
        database_uri=database_uri,
        artifact_uri=blobs.uri,
        records=records,
        registry=Names(records.database),
        blobs=blobs,
        logs=Logs(logs, LogCopies(records, logs)),
        checkpoints=Checkpoints(os.path.join(home, "checkpoints"), blobs.uri),
    )
