"""The statements of `store.registry`, in the dialect of both databases (`store.database`)."""

from __future__ import annotations

from typing import Final, Mapping, Sequence

from stoker.core.registry import ARCHIVED


def _selected(table: str, columns: Sequence[str], alias: str = "") -> str:
    names = ", ".join(f"{alias}.{name}" if alias else name for name in columns)
    return f"SELECT {names} FROM {table}{f' AS {alias}' if alias else ''}"


def _inserted(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) "


def _values(columns: Sequence[str]) -> str:
    return f"VALUES ({', '.join('?' * len(columns))})"


def _next(names: str, versions: str) -> str:
    """The next number of a name, which is given twice."""
    return (
        f"(SELECT COALESCE(max(number), 0) + 1 FROM (SELECT gone AS number FROM {names} WHERE name = ? "
        f"UNION ALL SELECT max(version) AS number FROM {versions} WHERE name = ?) AS known)"
    )


def _lists(**statements: str) -> dict[str, str]:
    """Statements, and as NAME_found those whose names have a part: what is asked of all names is found by other
    indexes."""
    found = {f"{name}_found": statement.format(has="AND {name_has} ") for name, statement in statements.items()}
    return {**{name: statement.format(has="") for name, statement in statements.items()}, **found}


_ARTIFACT: Final = (
    *("name", "version", "digest", "serializer", "type", "size", "meta", "inline"),
    *("created", "author", "run_id", "key", "output"),
)
_MODEL: Final = ("name", "version", "label", "stage", "created", "author", "description", "run_id")
_USE: Final = ("run_id", "key", "parameter", "name", "version")
_PROMOTION: Final = (
    *("model", "number", "version", "before", "stage", "displaced", "time", "author", "reason", "run_id"),
)
_MARK: Final = ("kind", "name", "version", "mark")
_FACT: Final = (*_MARK[:3], "fact", "value", "changed")
_SET_FACT: Final = (
    "ON CONFLICT (kind, name, version, fact) DO UPDATE SET value = excluded.value, changed = excluded.changed"
)
_OUTPUT: Final = "WHERE run_id = ? AND key = ? AND output = ? AND name = ? AND digest = ? AND run_id <> ''"
"""A step that runs again, because its result was lost, makes a version of its own where its bytes are others. The last
condition is that of the index `artifacts_by_output`, without which databases do not use it."""
_MADE: Final = "FROM model_versions WHERE name = ? AND run_id = ? AND run_id <> ''"
_USED: Final = f"COALESCE(NULLIF(?, 0), (SELECT version {_MADE}))"
"""The number of the version of a model that a run uses; with 0, of the one that it makes."""
_VERSION: Final = f"FROM model_versions WHERE name = ? AND version = {_USED}"

BATCH: Final[Mapping[str, str]] = {
    # The row of the name is locked from here on. A result that was reused is no change, and metadata makes no name. The
    # time of a name without versions is 0.
    "artifact_name": "INSERT INTO artifact_names (name, changed, gone) SELECT ?, ?, 0 WHERE ? = 0 OR EXISTS "
    "(SELECT 1 FROM artifact_names WHERE name = ?) ON CONFLICT (name) DO UPDATE "
    "SET changed = CASE WHEN artifact_names.changed = 0 AND ? = 1 THEN 0 WHEN artifact_names.changed > 0 AND ? = 1 "
    "THEN artifact_names.changed ELSE excluded.changed END",
    "artifact": f"{_inserted('artifacts', (*_ARTIFACT, 'token'))} SELECT ?, {_next('artifact_names', 'artifacts')}, "
    f"{', '.join('?' * 11)}, '' WHERE NOT EXISTS (SELECT 1 FROM artifacts {_OUTPUT}) "
    "AND (? = 0 OR NOT EXISTS (SELECT 1 FROM artifacts WHERE digest = ? AND name = ?))",
    "mark": f"{_inserted('marks', _MARK)} SELECT 'artifact', name, version, ? FROM artifacts {_OUTPUT} "
    "ON CONFLICT (kind, name, version, mark) DO NOTHING",
    "fact": f"{_inserted('facts', _FACT)} SELECT 'artifact', name, version, ?, ?, ? FROM artifacts {_OUTPUT} "
    f"{_SET_FACT}",
    "latest_facts": f"{_inserted('facts', _FACT)} SELECT 'artifact', name, max(version), ?, ?, ? FROM artifacts "
    f"WHERE name = ? GROUP BY name {_SET_FACT}",
    "model_name": "INSERT INTO model_names (name, changed, gone, rules) VALUES (?, ?, 0, '') "
    "ON CONFLICT (name) DO UPDATE SET changed = excluded.changed",
    "model": f"{_inserted('model_versions', (*_MODEL, 'token'))} SELECT ?, {_next('model_names', 'model_versions')}, "
    f"?, '', ?, ?, ?, ?, '' WHERE NOT EXISTS (SELECT 1 {_MADE}) "
    "AND (? = 1 OR NOT EXISTS (SELECT 1 FROM model_versions WHERE name = ?))",
    "model_run": f"INSERT INTO model_runs (run_id, model, model_version) SELECT ?, name, version {_VERSION} "
    "ON CONFLICT (model, model_version, run_id) DO NOTHING",
    "model_mark": f"INSERT INTO marks (kind, mark, name, version) SELECT 'model', ?, name, version {_VERSION} "
    "ON CONFLICT (kind, name, version, mark) DO NOTHING",
    "model_fact": "INSERT INTO facts (kind, fact, value, changed, name, version) SELECT 'model', ?, ?, ?, name, "
    f"version {_VERSION} {_SET_FACT}",
    "latest_model_facts": "INSERT INTO facts (kind, fact, value, changed, name, version) SELECT 'model', ?, ?, ?, "
    f"name, max(version) FROM model_versions WHERE name = ? GROUP BY name {_SET_FACT}",
    "model_part": "INSERT INTO model_parts (model, model_version, name, version) SELECT owner.name, owner.version, "
    "part.name, part.version FROM model_versions AS owner JOIN artifacts AS part ON part.name = ? WHERE owner.name = ? "
    f"AND owner.version = {_USED} AND part.version = (SELECT max(version) FROM "
    f"(SELECT version FROM artifacts {_OUTPUT} "
    "UNION ALL SELECT version FROM artifacts WHERE ? = 1 AND digest = ? AND name = ?) AS made) "
    "ON CONFLICT (model, model_version, name, version) DO NOTHING",
}
"""What a driver's batch executes, in this order."""

_OF_TOKEN: Final = (
    "SELECT version FROM (SELECT version, token FROM {table} WHERE name = ? ORDER BY version DESC LIMIT ?) AS newest "
    "WHERE token = ?"
)
"""What a call has made that is done once more: few calls can have come between."""
_LATEST_OF: Final = "(SELECT max(version) FROM {table} AS newer WHERE newer.name = {name})"
_A: Final = _selected("artifacts", _ARTIFACT)
_M: Final = _selected("model_versions", _MODEL)
_JOINED: Final = _selected("artifacts", _ARTIFACT, "one")
DIRECT: Final[Mapping[str, str]] = {
    "name_artifact": "INSERT INTO artifact_names (name, changed, gone) VALUES (?, ?, 0) ON CONFLICT (name) DO UPDATE "
    "SET changed = excluded.changed",
    "artifact_of_token": _OF_TOKEN.format(table="artifacts"),
    "next_artifact": f"SELECT {_next('artifact_names', 'artifacts')}",
    "add_artifact": _inserted("artifacts", (*_ARTIFACT, "token")) + _values((*_ARTIFACT, "token")),
    "latest_artifact": f"{_A} WHERE name = ? ORDER BY version DESC LIMIT 1",
    "artifact_at": f"{_A} WHERE name = ? AND version = ?",
    "has_artifact": "SELECT 1 FROM artifacts WHERE name = ? AND version = ?",
    "lock_artifact": "UPDATE artifact_names SET changed = ? WHERE name = ?",
    "hold_artifact": "UPDATE artifact_names SET gone = gone WHERE name = ?",
    "tagged_artifact": f"{_A} WHERE name = ? AND version = (SELECT max(version) FROM marks WHERE kind = 'artifact' "
    "AND mark = ? AND name = ?)",
    "artifact_of_digest": f"{_A} WHERE name = ? AND substr(digest, 1, ?) = ? ORDER BY version DESC LIMIT 1",
    **_lists(
        artifacts=f"{_JOINED} JOIN (SELECT name, changed FROM artifact_names WHERE (changed, name) < (?, ?) "
        "AND changed > 0 {has}ORDER BY changed DESC, name DESC LIMIT ? OFFSET ?) AS page "
        f"ON page.name = one.name WHERE one.version = {_LATEST_OF.format(table='artifacts', name='page.name')} "
        "ORDER BY page.changed DESC, page.name DESC",
        tagged=f"{_JOINED} JOIN (SELECT DISTINCT name FROM marks WHERE kind = 'artifact' AND mark = ? "
        "AND name > ? {has}ORDER BY name LIMIT ? OFFSET ?) AS page ON page.name = one.name WHERE one.version = (SELECT "
        "max(version) FROM marks WHERE kind = 'artifact' AND mark = ? AND marks.name = page.name) ORDER BY one.name",
        models=_selected("model_versions", _MODEL, "one")
        + " JOIN (SELECT name, changed FROM model_names WHERE (changed, name) < (?, ?) AND changed > 0 {has}"
        "AND EXISTS (SELECT 1 FROM model_versions AS v WHERE v.name = model_names.name "
        "AND (? = '' OR stage = ?)) ORDER BY changed DESC, name DESC LIMIT ? OFFSET ?) AS page ON page.name = one.name "
        "WHERE one.version = (SELECT max(version) FROM model_versions AS newer WHERE newer.name = page.name "
        "AND (? = '' OR newer.stage = ?)) ORDER BY page.changed DESC, page.name DESC",
    ),
    "changed_artifact": "SELECT changed FROM artifact_names WHERE name = ?",
    "changed_model": "SELECT changed FROM model_names WHERE name = ?",
    "versions": f"{_A} WHERE name = ? AND version < ? ORDER BY version DESC LIMIT ?",
    "named": f"{_A} WHERE digest = ? ORDER BY name, version",
    "named_in": f"{_A} WHERE run_id = ? AND run_id <> '' ORDER BY name, version LIMIT ?",
    "named_by": f"{_A} WHERE run_id = ? AND run_id <> '' AND key = ? ORDER BY name, version LIMIT ?",
    "named_lists": f"{_A} WHERE serializer = 'list'",
    "all_artifacts": f"{_A} ORDER BY name, version",
    "artifact_names": "SELECT name FROM artifact_names WHERE changed > 0 ORDER BY changed DESC LIMIT 1000",
    "model_with": "SELECT model, model_version FROM model_parts WHERE name = ? AND version = ? LIMIT 1",
    "delete_artifact": "DELETE FROM artifacts WHERE name = ? AND version = ?",
    "note_gone_artifact": "UPDATE artifact_names SET gone = ? WHERE name = ? AND gone < ?",
    "hide_artifact": "UPDATE artifact_names SET changed = 0 WHERE name = ? AND NOT EXISTS (SELECT 1 FROM artifacts "
    "WHERE name = ?)",
    "add_use": _inserted("artifact_uses", _USE) + _values(_USE) + f" ON CONFLICT ({', '.join(_USE)}) DO NOTHING",
    "uses": _selected("artifact_uses", _USE) + " WHERE name = ? AND version = ? ORDER BY run_id, key, parameter",
    "uses_of_run": _selected("artifact_uses", _USE) + " WHERE run_id = ? ORDER BY key, parameter, name LIMIT ?",
    "marks": "SELECT mark FROM marks WHERE kind = ? AND name = ? AND version = ? ORDER BY mark",
    "set_mark": _inserted("marks", _MARK) + _values(_MARK) + f" ON CONFLICT ({', '.join(_MARK)}) DO NOTHING",
    "unmark": f"DELETE FROM marks WHERE {' AND '.join(f'{name} = ?' for name in _MARK)}",
    "unmark_others": "DELETE FROM marks WHERE kind = ? AND name = ? AND mark = ? AND version <> ?",
    "facts": "SELECT fact, value FROM facts WHERE kind = ? AND name = ? AND version = ? ORDER BY fact",
    "numbers": "SELECT version, fact, value FROM facts WHERE kind = ? AND name = ? AND version >= ? AND version <= ? "
    "AND length(value) <= ? ORDER BY version, fact",
    "set_fact": f"{_inserted('facts', _FACT)}{_values(_FACT)} {_SET_FACT}",
    "model_name": BATCH["model_name"],
    "next_model": f"SELECT {_next('model_names', 'model_versions')}",
    "model_of_token": _OF_TOKEN.format(table="model_versions"),
    "model_labelled": "SELECT version FROM model_versions WHERE name = ? AND label = ? AND label <> ''",
    "add_model": _inserted("model_versions", (*_MODEL, "token")) + _values((*_MODEL, "token")),
    "latest_model": f"{_M} WHERE name = ? ORDER BY version DESC LIMIT 1",
    "model_at": f"{_M} WHERE name = ? AND version = ?",
    "has_model": "SELECT 1 FROM model_versions WHERE name = ? AND version = ?",
    "lock_model": "UPDATE model_names SET changed = ? WHERE name = ?",
    "hold_model": "UPDATE model_names SET gone = gone WHERE name = ?",
    "tagged_model": f"{_M} WHERE name = ? AND version = (SELECT max(version) FROM marks WHERE kind = 'model' "
    "AND mark = ? AND name = ?)",
    "model_called": f"{_M} WHERE name = ? AND (stage = ? OR label = ?) "
    "ORDER BY CASE WHEN stage = ? THEN 0 ELSE 1 END, version DESC LIMIT 1",
    "model_versions": f"{_M} WHERE name = ? AND version < ? ORDER BY version DESC LIMIT ?",
    "holders": f"{_M} WHERE name = ? AND stage NOT IN ('', '{ARCHIVED}') ORDER BY version",
    "model_names": "SELECT name FROM model_names ORDER BY changed DESC LIMIT 1000",
    "models_of_run": _selected("model_versions", _MODEL, "one") + " JOIN model_runs ON model_runs.model = one.name "
    "AND model_runs.model_version = one.version WHERE model_runs.run_id = ? ORDER BY one.name, one.version",
    "models_with": _selected("model_versions", _MODEL, "one") + " JOIN model_parts ON model_parts.model = one.name "
    "AND model_parts.model_version = one.version WHERE model_parts.name = ? AND model_parts.version = ? "
    "ORDER BY one.name, one.version",
    "parts": f"{_JOINED} JOIN model_parts ON model_parts.name = one.name AND model_parts.version = one.version "
    "WHERE model_parts.model = ? AND model_parts.model_version = ? ORDER BY one.name, one.version",
    "runs_of_model": "SELECT run_id FROM model_runs WHERE model = ? AND model_version = ? ORDER BY run_id",
    "link": "INSERT INTO model_parts (model, model_version, name, version) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (model, model_version, name, version) DO NOTHING",
    "unlink": "DELETE FROM model_parts WHERE model = ? AND model_version = ?",
    "note_run": "INSERT INTO model_runs (model, model_version, run_id) VALUES (?, ?, ?) "
    "ON CONFLICT (model, model_version, run_id) DO NOTHING",
    "forget_model_runs": "DELETE FROM model_runs WHERE model = ? AND model_version = ?",
    "stage_of": "SELECT stage FROM model_versions WHERE name = ? AND version = ?",
    "holder": f"{_M} WHERE name = ? AND stage = ? AND stage NOT IN ('', 'archived')",
    "set_stage": "UPDATE model_versions SET stage = ? WHERE name = ? AND version = ?",
    "next_promotion": "SELECT COALESCE(max(number), 0) + 1 FROM promotions WHERE model = ?",
    "has_promotion": "SELECT 1 FROM (SELECT version, time FROM promotions WHERE model = ? ORDER BY number DESC "
    "LIMIT ?) AS newest WHERE version = ? AND time = ?",
    "add_promotion": _inserted("promotions", _PROMOTION) + _values(_PROMOTION),
    "promotions": _selected("promotions", _PROMOTION) + " WHERE model = ? ORDER BY number DESC",
    "rules": "SELECT rules FROM model_names WHERE name = ?",
    "set_rules": "UPDATE model_names SET rules = ? WHERE name = ? AND rules = ?",
    "hide_model": "UPDATE model_names SET changed = 0 WHERE name = ? AND NOT EXISTS (SELECT 1 FROM model_versions "
    "WHERE name = ?)",
    "delete_model": "DELETE FROM model_versions WHERE name = ? AND version = ?",
    "note_gone_model": "UPDATE model_names SET gone = ? WHERE name = ? AND gone < ?",
}
