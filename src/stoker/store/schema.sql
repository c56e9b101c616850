-- The tables, as numbered migrations: the one with the number N brings a database to version N and never changes again.
-- Times are seconds since the epoch. JSON is text; an empty value is an empty text. The plan has a table of its own
-- because a run's row changes every few seconds and a plan may be megabytes. `store.database` replaces `{blob}`,
-- `{clustered}`, `{searched}` and `{postgresql}`.

--- 1
CREATE TABLE runs (
    id text PRIMARY KEY, pipeline text NOT NULL, status text NOT NULL,
    created double precision NOT NULL, started double precision, ended double precision,
    parameters text NOT NULL, tags text NOT NULL, source text NOT NULL, stack text NOT NULL,
    failure_mode text NOT NULL, dynamic integer NOT NULL, driver text NOT NULL, token text NOT NULL,
    heartbeat double precision, error text NOT NULL, sessions integer NOT NULL, asked text NOT NULL);
CREATE INDEX runs_by_time ON runs (created);
CREATE INDEX runs_by_pipeline ON runs (pipeline, created);
CREATE TABLE plans (run_id text PRIMARY KEY, plan text NOT NULL);
CREATE TABLE steps (
    run_id text NOT NULL, key text NOT NULL, name text NOT NULL, position integer NOT NULL,
    parent text NOT NULL, idx integer, status text NOT NULL,
    started double precision, ended double precision, cause text NOT NULL, message text NOT NULL,
    cached_from text NOT NULL, inputs text NOT NULL, cache_key text NOT NULL, attempts integer NOT NULL,
    count integer, usage text NOT NULL, PRIMARY KEY (run_id, key)){clustered};
-- Elements only: every index makes a row that is written alone, as in a chain, a third more expensive.
CREATE INDEX elements ON steps (run_id, parent, idx) WHERE parent <> '';
CREATE TABLE outputs (
    run_id text NOT NULL, key text NOT NULL, name text NOT NULL, digest text NOT NULL, serializer text NOT NULL,
    type text NOT NULL, size bigint NOT NULL, meta text NOT NULL, inline {blob}, place integer NOT NULL,
    PRIMARY KEY (run_id, key, name)){clustered};
-- Blobs only: queries by digest are for large values.
CREATE INDEX outputs_by_digest ON outputs (digest) WHERE inline IS NULL;
CREATE TABLE attempts (
    run_id text NOT NULL, key text NOT NULL, number integer NOT NULL, status text NOT NULL,
    backend text NOT NULL, job text NOT NULL, started double precision, ended double precision,
    cause text NOT NULL, message text NOT NULL, error text NOT NULL, exit_code integer, usage text NOT NULL,
    PRIMARY KEY (run_id, key, number)){clustered};
CREATE TABLE cache (
    key text PRIMARY KEY, run_id text NOT NULL, step_key text NOT NULL, created double precision NOT NULL,
    expires double precision, outputs text NOT NULL){clustered};
CREATE TABLE events (
    run_id text NOT NULL, seq bigint NOT NULL, time double precision NOT NULL, kind text NOT NULL,
    key text NOT NULL, data text NOT NULL, PRIMARY KEY (run_id, seq)){clustered};

--- 2
-- A receipt's tracks are compressed JSON; a list of receipts does not read them.
CREATE TABLE receipts (
    run_id text NOT NULL, key text NOT NULL, number integer NOT NULL, verdict text NOT NULL,
    receipt text NOT NULL, tracks {blob} NOT NULL, PRIMARY KEY (run_id, key, number));

--- 3
-- The changes with which steps worked that had run out of memory; each attempt has its own changes.
CREATE TABLE rungs (
    key text PRIMARY KEY, run_id text NOT NULL, created double precision NOT NULL,
    changes text NOT NULL){clustered};
ALTER TABLE attempts ADD COLUMN changes text NOT NULL DEFAULT '';

--- 4
-- The run that a run repeats.
ALTER TABLE runs ADD COLUMN origin text NOT NULL DEFAULT '';
-- Files of the user's code, compressed; plans name them by the digests of their texts.
CREATE TABLE sources (
    digest text PRIMARY KEY, created double precision NOT NULL, text {blob} NOT NULL){clustered};
-- What cache keys are made of beside inputs: each once, however many steps have it.
CREATE TABLE recipes (
    digest text PRIMARY KEY, created double precision NOT NULL, document text NOT NULL){clustered};
ALTER TABLE steps ADD COLUMN recipe text NOT NULL DEFAULT '';

--- 5
-- What attempts logged of themselves: pieces in the order in which they came (`core.metrics`), joined when they
-- are many.
CREATE TABLE metrics (
    run_id text NOT NULL, key text NOT NULL, number integer NOT NULL, piece integer NOT NULL,
    data {blob} NOT NULL, PRIMARY KEY (run_id, key, number, piece)){clustered};

--- 6
-- Lists of runs by status; and, without a look at the rows, by what people search for. A tag may be longer than
-- a key of PostgreSQL's indexes, which reads the rows instead.
CREATE INDEX runs_by_status ON runs (status, created);
DROP INDEX runs_by_time;
CREATE INDEX runs_by_time ON runs (created, id{searched});

--- 7
-- Elements have rows when they have ended: which run now, the driver writes with its heartbeat.
ALTER TABLE runs ADD COLUMN active text NOT NULL DEFAULT '';

--- 8
-- Copies of the logs of runs whose driver's home nobody else sees (`store.logcopies`), compressed.
CREATE TABLE log_pieces (
    run_id text NOT NULL, number bigint NOT NULL, name text NOT NULL, place bigint NOT NULL,
    size integer NOT NULL, data {blob} NOT NULL, PRIMARY KEY (run_id, number)){clustered};

--- 9
-- Names beyond runs (`store.registry`). A version's number is never given twice: `gone` is the highest of the
-- versions that were deleted. Rows stay when the run that made them is deleted. `token` is of the call that made
-- a version outside of runs, so that it finds what it did after a lost connection.
CREATE TABLE artifact_names (
    name text PRIMARY KEY, gone integer NOT NULL, changed double precision NOT NULL){clustered};
CREATE INDEX artifact_names_by_time ON artifact_names (changed, name);
CREATE TABLE artifacts (
    name text NOT NULL, version integer NOT NULL, digest text NOT NULL, serializer text NOT NULL,
    type text NOT NULL, size bigint NOT NULL, meta text NOT NULL, inline {blob},
    created double precision NOT NULL, author text NOT NULL, run_id text NOT NULL, key text NOT NULL,
    output text NOT NULL, token text NOT NULL, PRIMARY KEY (name, version)){clustered};
CREATE INDEX artifacts_by_digest ON artifacts (digest);
CREATE UNIQUE INDEX artifacts_by_output ON artifacts (run_id, key, output, name) WHERE run_id <> '';
-- The versions that runs were given by name.
CREATE TABLE artifact_uses (
    run_id text NOT NULL, key text NOT NULL, parameter text NOT NULL, name text NOT NULL,
    version integer NOT NULL, PRIMARY KEY (run_id, key, parameter, name, version)){clustered};
CREATE INDEX artifact_uses_by_name ON artifact_uses (name, version);
-- `kind` is what they are of, an artifact, a model, a run or a step; the latter two have version 0.
CREATE TABLE marks (
    kind text NOT NULL, name text NOT NULL, version integer NOT NULL, mark text NOT NULL,
    PRIMARY KEY (kind, name, version, mark)){clustered};
CREATE INDEX marks_by_mark ON marks (kind, mark, name, version);
CREATE TABLE facts (
    kind text NOT NULL, name text NOT NULL, version integer NOT NULL, fact text NOT NULL, value text NOT NULL,
    changed double precision NOT NULL, PRIMARY KEY (kind, name, version, fact)){clustered};
CREATE TABLE model_names (
    name text PRIMARY KEY, gone integer NOT NULL, changed double precision NOT NULL, rules text NOT NULL)
    {clustered};
CREATE INDEX model_names_by_time ON model_names (changed, name);
CREATE TABLE model_versions (
    name text NOT NULL, version integer NOT NULL, label text NOT NULL, stage text NOT NULL,
    created double precision NOT NULL, author text NOT NULL, description text NOT NULL, run_id text NOT NULL,
    token text NOT NULL, PRIMARY KEY (name, version)){clustered};
CREATE UNIQUE INDEX model_stages ON model_versions (name, stage) WHERE stage NOT IN ('', 'archived');
CREATE UNIQUE INDEX model_labels ON model_versions (name, label) WHERE label <> '';
CREATE UNIQUE INDEX model_makers ON model_versions (run_id, name) WHERE run_id <> '';
CREATE TABLE model_parts (
    model text NOT NULL, model_version integer NOT NULL, name text NOT NULL, version integer NOT NULL,
    PRIMARY KEY (model, model_version, name, version)){clustered};
CREATE INDEX model_parts_by_artifact ON model_parts (name, version);
CREATE TABLE model_runs (
    model text NOT NULL, model_version integer NOT NULL, run_id text NOT NULL,
    PRIMARY KEY (model, model_version, run_id)){clustered};
CREATE INDEX model_runs_by_run ON model_runs (run_id);
CREATE TABLE promotions (
    model text NOT NULL, number integer NOT NULL, version integer NOT NULL, before text NOT NULL,
    stage text NOT NULL, displaced integer, time double precision NOT NULL, author text NOT NULL,
    reason text NOT NULL, run_id text NOT NULL, PRIMARY KEY (model, number)){clustered};

--- 10
-- Where a run's code was in its repository (`run.revision`).
ALTER TABLE runs ADD COLUMN revision text NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN branch text NOT NULL DEFAULT '';
-- When pipelines are to run, and what starts them (`store.schedules`).
CREATE TABLE schedules (
    name text PRIMARY KEY, cron text NOT NULL, zone text NOT NULL, file text NOT NULL, words text NOT NULL,
    folder text NOT NULL, code text NOT NULL, stack text NOT NULL, target text NOT NULL,
    overlap text NOT NULL, paused integer NOT NULL, since double precision NOT NULL,
    created double precision NOT NULL, author text NOT NULL){clustered};
-- What was to start a run: the due time of a schedule, or what a watcher saw. Whoever inserts the row starts it.
CREATE TABLE firings (
    source text NOT NULL, occasion text NOT NULL, state text NOT NULL, due double precision NOT NULL,
    run_id text NOT NULL, owner text NOT NULL, changed double precision NOT NULL, note text NOT NULL,
    PRIMARY KEY (source, occasion)){clustered};
CREATE INDEX firings_by_run ON firings (run_id) WHERE run_id <> '';
CREATE INDEX firings_by_time ON firings (source, due);

--- 11
-- What a part of a name is looked for in (`{name_has}`), without a look at the rows.
{postgresql}ALTER TABLE artifact_names ADD COLUMN folded text GENERATED ALWAYS AS (lower(name)) STORED;
{postgresql}ALTER TABLE model_names ADD COLUMN folded text GENERATED ALWAYS AS (lower(name)) STORED;
{postgresql}ALTER TABLE marks ADD COLUMN folded text GENERATED ALWAYS AS (lower(name)) STORED;
{postgresql}DROP INDEX artifact_names_by_time;
{postgresql}CREATE INDEX artifact_names_by_time ON artifact_names (changed, name) INCLUDE (folded);
{postgresql}DROP INDEX model_names_by_time;
{postgresql}CREATE INDEX model_names_by_time ON model_names (changed, name) INCLUDE (folded);
{postgresql}DROP INDEX marks_by_mark;
{postgresql}CREATE INDEX marks_by_mark ON marks (kind, mark, name, version) INCLUDE (folded);
-- A lost result that is computed again may have other bytes, which are a version of their own.
DROP INDEX artifacts_by_output;
CREATE UNIQUE INDEX artifacts_by_output ON artifacts (run_id, key, output, name, digest) WHERE run_id <> '';

--- 12
-- Who started a run, and how its files differed from the commit (`run.revision`).
ALTER TABLE runs ADD COLUMN author text NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN worktree text NOT NULL DEFAULT '';
