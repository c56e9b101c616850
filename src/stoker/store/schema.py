"""The tables, as numbered migrations: entry N brings a database from version N to N + 1 and never changes again.

Times are seconds since the epoch. JSON is text; an empty value is an empty text. The plan has a table of its own
because a run's row changes every few seconds and a plan may be megabytes. `store.database` replaces `{blob}` and
`{clustered}`.
"""

from __future__ import annotations

from typing import Final, Sequence

MIGRATIONS: Final[Sequence[Sequence[str]]] = (
    (
        """CREATE TABLE runs (
            id text PRIMARY KEY, pipeline text NOT NULL, status text NOT NULL,
            created double precision NOT NULL, started double precision, ended double precision,
            parameters text NOT NULL, tags text NOT NULL, source text NOT NULL, stack text NOT NULL,
            failure_mode text NOT NULL, dynamic integer NOT NULL, driver text NOT NULL, token text NOT NULL,
            heartbeat double precision, error text NOT NULL, sessions integer NOT NULL, asked text NOT NULL)""",
        "CREATE INDEX runs_by_time ON runs (created)",
        "CREATE INDEX runs_by_pipeline ON runs (pipeline, created)",
        "CREATE TABLE plans (run_id text PRIMARY KEY, plan text NOT NULL)",
        """CREATE TABLE steps (
            run_id text NOT NULL, key text NOT NULL, name text NOT NULL, position integer NOT NULL,
            parent text NOT NULL, idx integer, status text NOT NULL,
            started double precision, ended double precision, cause text NOT NULL, message text NOT NULL,
            cached_from text NOT NULL, inputs text NOT NULL, cache_key text NOT NULL, attempts integer NOT NULL,
            count integer, usage text NOT NULL, PRIMARY KEY (run_id, key)){clustered}""",
        # Elements only: every index makes a row that is written alone, as in a chain, a third more expensive.
        "CREATE INDEX elements ON steps (run_id, parent, idx) WHERE parent <> ''",
        """CREATE TABLE outputs (
            run_id text NOT NULL, key text NOT NULL, name text NOT NULL, digest text NOT NULL, serializer text NOT NULL,
            type text NOT NULL, size bigint NOT NULL, meta text NOT NULL, inline {blob}, place integer NOT NULL,
            PRIMARY KEY (run_id, key, name)){clustered}""",
        # Blobs only: queries by digest are for large values.
        "CREATE INDEX outputs_by_digest ON outputs (digest) WHERE inline IS NULL",
        """CREATE TABLE attempts (
            run_id text NOT NULL, key text NOT NULL, number integer NOT NULL, status text NOT NULL,
            backend text NOT NULL, job text NOT NULL, started double precision, ended double precision,
            cause text NOT NULL, message text NOT NULL, error text NOT NULL, exit_code integer, usage text NOT NULL,
            PRIMARY KEY (run_id, key, number)){clustered}""",
        """CREATE TABLE cache (
            key text PRIMARY KEY, run_id text NOT NULL, step_key text NOT NULL, created double precision NOT NULL,
            expires double precision, outputs text NOT NULL){clustered}""",
        """CREATE TABLE events (
            run_id text NOT NULL, seq bigint NOT NULL, time double precision NOT NULL, kind text NOT NULL,
            key text NOT NULL, data text NOT NULL, PRIMARY KEY (run_id, seq)){clustered}""",
    ),
    (
        # A receipt's tracks are compressed JSON; a list of receipts does not read them.
        """CREATE TABLE receipts (
            run_id text NOT NULL, key text NOT NULL, number integer NOT NULL, verdict text NOT NULL,
            receipt text NOT NULL, tracks {blob} NOT NULL, PRIMARY KEY (run_id, key, number))""",
    ),
    (
        # The changes with which steps worked that had run out of memory; each attempt has its own changes.
        """CREATE TABLE rungs (
            key text PRIMARY KEY, run_id text NOT NULL, created double precision NOT NULL,
            changes text NOT NULL){clustered}""",
        "ALTER TABLE attempts ADD COLUMN changes text NOT NULL DEFAULT ''",
    ),
)
