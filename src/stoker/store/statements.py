"""The statements of `store.records`, by name, in the words that SQLite and PostgreSQL share."""

from __future__ import annotations

from typing import Final, Mapping, Sequence

from stoker.store import rows


def columns(names: Sequence[str], table: str) -> str:
    """The beginning of a query for columns of a table."""
    return "SELECT " + ", ".join(names) + f" FROM {table}"


def _upsert(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    marks = ", ".join("?" * len(names))
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
    )


RUN: Final = columns(rows.RUNS.columns, "runs")
_STEP: Final = columns(rows.STEPS.columns, "steps")
_THAT_RAN: Final = "WHERE run_id = ? AND parent = ? AND parent <> '' AND cached_from = '' AND attempts > 0"
_OUTPUT: Final = columns(rows.OUTPUT_COLUMNS, "outputs")
_CACHE: Final = columns(rows.CACHE.columns, "cache")
STATEMENTS: Final[Mapping[str, str]] = {
    "runs": f"INSERT INTO runs ({', '.join(rows.RUNS.columns)}) VALUES ({', '.join('?' * len(rows.RUNS.columns))}) "
    "ON CONFLICT (id) DO NOTHING",
    "plans": _upsert("plans", ("run_id", "plan"), ("run_id",)),
    "steps": _upsert("steps", rows.STEPS.columns, ("run_id", "key")),
    "progress": "UPDATE steps SET "
    + ", ".join(f"{name} = ?" for name in rows.PROGRESS.columns[2:])
    + " WHERE run_id = ? AND key = ?",
    "outputs": _upsert("outputs", rows.OUTPUT_COLUMNS, ("run_id", "key", "name")),
    "attempts": _upsert("attempts", rows.ATTEMPTS.columns, ("run_id", "key", "number")),
    "receipts": _upsert("receipts", rows.RECEIPT_COLUMNS, ("run_id", "key", "number")),
    "cache": _upsert("cache", rows.CACHE.columns, ("key",)),
    "events": f"INSERT INTO events ({', '.join(rows.EVENTS.columns)}) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (run_id, seq) DO NOTHING",
    "is_holder": "SELECT 1 FROM runs WHERE id = ? AND token = ?{locked}",
    "take_over": "UPDATE runs SET token = ?, driver = ?, heartbeat = ?, status = 'running', ended = NULL, error = '', "
    "asked = '', active = '', sessions = sessions + 1 WHERE id = ? AND token = ? AND status <> 'succeeded'",
    "request_end": "UPDATE runs SET asked = ? WHERE id = ? AND status = 'running'",
    "cancel_waiting": "UPDATE runs SET token = ?, status = 'cancelled', ended = ? "
    "WHERE id = ? AND token = ? AND status = 'running'",
    "heartbeat": "UPDATE runs SET heartbeat = ?, active = ? WHERE id = ? AND token = ?",
    "requested_end": "SELECT asked FROM runs WHERE id = ?",
    "rungs": _upsert("rungs", rows.RUNGS.columns, ("key",)),
    "sources": "INSERT INTO sources (digest, created, text) VALUES (?, ?, ?) ON CONFLICT (digest) DO NOTHING",
    "source": "SELECT text FROM sources WHERE digest = ?",
    "recipes": f"INSERT INTO recipes ({', '.join(rows.RECIPES.columns)}) VALUES (?, ?, ?) "
    "ON CONFLICT (digest) DO NOTHING",
    "recipe": columns(rows.RECIPES.columns, "recipes") + " WHERE digest = ?",
    "has_recipe": "SELECT 1 FROM recipes WHERE digest = ?",
    "forget_recipes": "DELETE FROM recipes WHERE created < ? AND digest NOT IN (SELECT recipe FROM steps)",
    "earlier_steps": "SELECT "
    + ", ".join(f"steps.{name}" for name in rows.STEPS.columns)
    + " FROM runs JOIN steps ON steps.run_id = runs.id WHERE runs.pipeline = ? AND runs.created < ? AND steps.key = ? "
    "ORDER BY runs.created DESC LIMIT ?",
    "maker_of": "SELECT "
    + ", ".join(f"outputs.{name}" for name in rows.OUTPUT_COLUMNS)
    + " FROM outputs JOIN steps ON steps.run_id = outputs.run_id AND steps.key = outputs.key"
    " WHERE outputs.run_id = ? AND outputs.digest = ? ORDER BY steps.ended, outputs.place LIMIT 1",
    "old_sources": "SELECT digest FROM sources WHERE created < ?",
    "forget_source": "DELETE FROM sources WHERE digest = ?",
    "rung": columns(rows.RUNGS.columns, "rungs") + " WHERE key = ?",
    "forget_rung": "DELETE FROM rungs WHERE key = ?",
    "run": f"{RUN} WHERE id = ?",
    "runs_by_prefix": f"{RUN} WHERE substr(id, 1, ?) = ? ORDER BY created DESC LIMIT 6",
    "plan": "SELECT plan FROM plans WHERE run_id = ?",
    "all_plans": "SELECT run_id, plan FROM plans WHERE plan <> '' ORDER BY run_id",
    "step": f"{_STEP} WHERE run_id = ? AND key = ?",
    "top": f"{_STEP} WHERE run_id = ? AND parent = '' ORDER BY position, key LIMIT ? OFFSET ?",
    "elements": f"{_STEP} WHERE run_id = ? AND parent = ? AND parent <> '' ORDER BY idx LIMIT ? OFFSET ?",
    "first_element": f"{_STEP} WHERE run_id = ? AND parent = ? AND parent <> '' AND status = ? ORDER BY idx LIMIT 1",
    "cached_from": "SELECT key, cached_from FROM steps WHERE run_id = ? AND (parent = ? OR ?) AND cached_from <> ''",
    "first_start": "SELECT min(started) FROM steps WHERE run_id = ? AND parent = ? AND parent <> ''",
    "first_that_ran": f"{_STEP} {_THAT_RAN} ORDER BY idx LIMIT 1",
    "count_that_ran": f"SELECT count(*) FROM steps {_THAT_RAN}",
    "all_steps": f"{_STEP} WHERE run_id = ? ORDER BY position, parent, idx",
    "counts": "SELECT status, count(*) FROM steps WHERE run_id = ? GROUP BY status",
    "counts_of": "SELECT status, count(*) FROM steps WHERE run_id = ? AND parent = ? GROUP BY status",
    "most_attempts": "SELECT max(attempts) FROM steps WHERE run_id = ? AND parent = ?",
    "caught_count": "SELECT count(*) FROM steps WHERE run_id = ? AND parent = ? AND message <> '' "
    "AND status IN ('succeeded', 'cached')",
    "spans": "SELECT key, ended - started FROM attempts WHERE run_id = ? AND ended > started",
    "usages": "SELECT usage FROM steps WHERE run_id = ? AND parent = ? AND usage <> ''",
    "outputs_of": f"{_OUTPUT} WHERE run_id = ? AND key = ? ORDER BY place, name",
    "element_outputs": "SELECT "
    + ", ".join(f"outputs.{name}" for name in rows.OUTPUT_COLUMNS)
    + " FROM steps JOIN outputs ON outputs.run_id = steps.run_id AND outputs.key = steps.key"
    " WHERE steps.run_id = ? AND steps.parent = ? AND steps.parent <> '' AND outputs.name = ? ORDER BY steps.idx",
    "lineage": f"{_OUTPUT} WHERE digest = ? AND inline IS NULL ORDER BY run_id, key, name",
    "inline": f"{_OUTPUT} WHERE digest = ? ORDER BY run_id, key, name",
    "all_outputs": f"{_OUTPUT} ORDER BY run_id, key, name",
    "blob_outputs": f"{_OUTPUT} WHERE inline IS NULL LIMIT ?",
    "all_cached": _CACHE,
    "manifests": f"{_OUTPUT} WHERE serializer = 'list'",
    "attempts_of": columns(rows.ATTEMPTS.columns, "attempts") + " WHERE run_id = ? AND key = ? ORDER BY number",
    "attempt_numbers": "SELECT key, max(number) FROM attempts WHERE run_id = ? GROUP BY key",
    "joined_metrics": "DELETE FROM metrics WHERE run_id = ? AND key = ? AND number = ? AND piece <= ?",
    "metrics": _upsert("metrics", rows.METRIC_COLUMNS, ("run_id", "key", "number", "piece")),
    "metric_pieces": "SELECT piece, data FROM metrics WHERE run_id = ? AND key = ? AND number = ? ORDER BY piece",
    "metric_attempts": "SELECT DISTINCT key, number FROM metrics WHERE run_id = ? ORDER BY key, number",
    "last_metric_pieces": "SELECT key, number, data FROM metrics WHERE run_id = ? AND substr(key, 1, ?) = ?"
    " AND number = (SELECT max(number) FROM metrics AS later"
    " WHERE later.run_id = metrics.run_id AND later.key = metrics.key)"
    " ORDER BY key, piece",
    "log_pieces": "INSERT INTO log_pieces (run_id, number, name, place, size, data) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (run_id, number) DO NOTHING",
    "outdated_log": "DELETE FROM log_pieces WHERE run_id = ? AND name = ? AND number < ?",
    "next_log": "SELECT number, name, place, size, data FROM log_pieces WHERE run_id = ? AND number > ? "
    "ORDER BY number LIMIT ?",
    "log_sizes": "SELECT name, max(place + size) FROM log_pieces WHERE run_id = ? GROUP BY name",
    "last_log": "SELECT max(number) FROM log_pieces WHERE run_id = ?",
    "all_receipts": columns(rows.RECEIPT_COLUMNS, "receipts") + " ORDER BY run_id, key, number",
    "receipt": columns(rows.RECEIPT_COLUMNS, "receipts") + " WHERE run_id = ? AND key = ? AND number = ?",
    "receipts_of": columns(rows.RECEIPT_COLUMNS[:-1], "receipts")
    + " WHERE run_id = ? AND (key = ? OR ? = '') ORDER BY key, number",
    "events_of": columns(rows.EVENTS.columns, "events") + " WHERE run_id = ? AND seq > ? ORDER BY seq",
    "job_events": columns(rows.EVENTS.columns, "events")
    + " WHERE run_id = ? AND kind IN ('job', 'waiting', 'leased') AND (key = ? OR ? = '') ORDER BY seq",
    "failed_element": "SELECT message FROM steps WHERE run_id = ? AND parent = ? AND parent <> '' "
    "AND status = 'failed' AND message <> '' ORDER BY idx LIMIT 1",
    "left_events": columns(rows.EVENTS.columns, "events")
    + " WHERE kind IN ('left', 'left-ended', 'resumed') AND (run_id = ? OR ? = '') ORDER BY run_id, seq",
    "left_out_events": columns(rows.EVENTS.columns, "events")
    + " WHERE kind = 'left-out' AND time >= ? AND (run_id = ? OR ? = '') ORDER BY time, seq",
    "step_events": columns(rows.EVENTS.columns, "events") + " WHERE run_id = ? AND key = ? AND kind = ? ORDER BY seq",
    "last_seq": "SELECT max(seq) FROM events WHERE run_id = ?",
    "cached": f"{_CACHE} WHERE key = ? AND (expires IS NULL OR expires > ?)",
}
LOSSES: Final = (
    "SELECT SUM(CASE WHEN attempts.cause IN ({}) THEN 1 ELSE 0 END), SUM(attempts.ended - attempts.started) "
    "FROM runs JOIN attempts ON attempts.run_id = runs.id WHERE runs.stack = ? AND attempts.backend = ? "
    "AND attempts.ended > attempts.started"
)
