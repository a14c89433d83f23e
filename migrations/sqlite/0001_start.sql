-- The first schema. `@` stands for the prefix of the table names. JSON columns hold canonical text, times are UTC
-- milliseconds, amounts are micro-units. STRICT, so that a wrong type is refused where it is written.

CREATE TABLE @component_blobs (
    digest TEXT NOT NULL PRIMARY KEY,
    bytes  BLOB NOT NULL
) STRICT;

CREATE TABLE @components (
    app         TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    digest      TEXT    NOT NULL REFERENCES @component_blobs (digest),
    descriptors TEXT    NOT NULL,
    pushed_at   INTEGER NOT NULL,
    active      INTEGER NOT NULL CHECK (active IN (0, 1)),
    PRIMARY KEY (app, version)
) STRICT;
CREATE UNIQUE INDEX @components_active ON @components (app) WHERE active = 1;
CREATE INDEX @components_digest ON @components (digest);

CREATE TABLE @definitions (
    hash   TEXT    NOT NULL PRIMARY KEY,
    ref    TEXT    NOT NULL,
    format INTEGER NOT NULL,
    body   TEXT    NOT NULL
) STRICT;

-- `parent_id` is deliberately no foreign key: a run whose parent row is gone must be refused a budget, not deleted with it.
CREATE TABLE @runs (
    id               TEXT    NOT NULL PRIMARY KEY,
    root_id          TEXT    NOT NULL,
    parent_id        TEXT,
    invocation_key   TEXT,
    ref              TEXT    NOT NULL,
    definition_hash  TEXT    NOT NULL REFERENCES @definitions (hash),
    title            TEXT    NOT NULL,
    entry_step       TEXT,
    scope            TEXT,
    params           TEXT    NOT NULL,
    labels           TEXT    NOT NULL,
    forced           INTEGER NOT NULL CHECK (forced IN (0, 1)),
    start_key        TEXT,
    state            TEXT    NOT NULL,
    generation       INTEGER NOT NULL,
    lease_holder     TEXT,
    lease_expires_at INTEGER,
    wake_at          INTEGER,
    outputs          TEXT,
    failure          TEXT,
    event_seq        INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    finished_at      INTEGER
) STRICT;
CREATE UNIQUE INDEX @runs_start_key ON @runs (start_key) WHERE start_key IS NOT NULL;
CREATE UNIQUE INDEX @runs_children ON @runs (parent_id, invocation_key) WHERE parent_id IS NOT NULL;
CREATE INDEX @runs_newest ON @runs (created_at DESC, id);
CREATE INDEX @runs_newest_in_scope ON @runs (scope, created_at DESC, id);
CREATE INDEX @runs_newest_of_ref ON @runs (ref, created_at DESC, id);
CREATE INDEX @runs_newest_in_state ON @runs (state, created_at DESC, id);
CREATE INDEX @runs_of_ref_in_state ON @runs (ref, state);
CREATE INDEX @runs_of_ref_in_scope ON @runs (ref, scope, state);
-- The guard on scopes, once more where no code can forget it.
CREATE UNIQUE INDEX @runs_scope_guard ON @runs (ref, scope)
    WHERE parent_id IS NULL AND forced = 0 AND scope IS NOT NULL AND state IN ('active', 'waiting');

CREATE TABLE @steps (
    run_id       TEXT    NOT NULL REFERENCES @runs (id),
    key          TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    title        TEXT,
    instructions TEXT,
    action       TEXT,
    state        TEXT    NOT NULL,
    input        TEXT,
    input_hash   TEXT,
    reserved_at  INTEGER,
    tries        INTEGER NOT NULL,
    key_retries  INTEGER NOT NULL,
    output       TEXT,
    failure      TEXT,
    notes        TEXT,
    evidence     TEXT,
    summary      TEXT,
    dependency   TEXT,
    same_attempt INTEGER NOT NULL CHECK (same_attempt IN (0, 1)),
    started_at   INTEGER,
    completed_at INTEGER,
    PRIMARY KEY (run_id, key),
    UNIQUE (run_id, position)
) STRICT;

-- `may_have_begun`: whether the finished attempt let an effectful request out under the key that the step has now.
CREATE TABLE @attempts (
    run_id           TEXT    NOT NULL REFERENCES @runs (id),
    unit             TEXT    NOT NULL,
    number           INTEGER NOT NULL,
    dispatch         TEXT    NOT NULL,
    claim_token      TEXT,
    generation       INTEGER NOT NULL,
    holder           TEXT,
    claim_expires_at INTEGER,
    state            TEXT    NOT NULL CHECK (state IN ('running', 'finished')),
    outcome          TEXT,
    reason           TEXT,
    record           TEXT,
    may_have_begun   INTEGER NOT NULL CHECK (may_have_begun IN (0, 1)),
    lost             INTEGER NOT NULL CHECK (lost IN (0, 1)),
    started_at       INTEGER NOT NULL,
    finished_at      INTEGER,
    PRIMARY KEY (run_id, unit, number),
    UNIQUE (run_id, dispatch)
) STRICT;
CREATE UNIQUE INDEX @attempts_running ON @attempts (run_id, unit) WHERE state = 'running';

CREATE TABLE @effects (
    run_id            TEXT    NOT NULL REFERENCES @runs (id),
    key               TEXT    NOT NULL,
    step              TEXT    NOT NULL,
    class             TEXT    NOT NULL,
    state             TEXT    NOT NULL,
    input_hash        TEXT    NOT NULL,
    component         TEXT    NOT NULL,
    generation        INTEGER NOT NULL,
    dispatch          TEXT    NOT NULL,
    marked_at         INTEGER NOT NULL,
    deadline          INTEGER NOT NULL,
    visible_within_ms INTEGER NOT NULL,
    output            TEXT,
    failure           TEXT,
    settled_at        INTEGER,
    PRIMARY KEY (run_id, key)
) STRICT;
CREATE INDEX @effects_in_doubt ON @effects (state, marked_at, run_id, key);

CREATE TABLE @budget_caps (
    root_id   TEXT    NOT NULL REFERENCES @runs (id),
    dimension TEXT    NOT NULL,
    cap       INTEGER NOT NULL CHECK (cap >= 0),
    PRIMARY KEY (root_id, dimension)
) STRICT, WITHOUT ROWID;

CREATE TABLE @budget_used (
    root_id   TEXT    NOT NULL REFERENCES @runs (id),
    dimension TEXT    NOT NULL,
    used      INTEGER NOT NULL CHECK (used >= 0),
    PRIMARY KEY (root_id, dimension)
) STRICT, WITHOUT ROWID;

-- `request` is 0 for what the plan announced, else the number of the request that was charged then and there.
CREATE TABLE @charges (
    root_id     TEXT    NOT NULL REFERENCES @runs (id),
    run_id      TEXT    NOT NULL REFERENCES @runs (id),
    step        TEXT    NOT NULL,
    dispatch    TEXT    NOT NULL,
    generation  INTEGER NOT NULL,
    request     INTEGER NOT NULL,
    dimension   TEXT    NOT NULL,
    amount      INTEGER NOT NULL CHECK (amount >= 0),
    charged_at  INTEGER NOT NULL,
    refunded_at INTEGER,
    PRIMARY KEY (run_id, dispatch, generation, request, dimension)
) STRICT;
CREATE INDEX @charges_of_root ON @charges (root_id, charged_at);

CREATE TABLE @variables (
    run_id TEXT NOT NULL REFERENCES @runs (id),
    name   TEXT NOT NULL,
    value  TEXT NOT NULL,
    PRIMARY KEY (run_id, name)
) STRICT;

CREATE TABLE @documents (
    app   TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (app, key)
) STRICT;

CREATE TABLE @events (
    run_id          TEXT    NOT NULL REFERENCES @runs (id),
    seq             INTEGER NOT NULL,
    kind            TEXT    NOT NULL,
    step            TEXT,
    at              INTEGER NOT NULL,
    data            TEXT    NOT NULL,
    idempotency_key TEXT,
    PRIMARY KEY (run_id, seq)
) STRICT;
CREATE UNIQUE INDEX @events_once ON @events (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
