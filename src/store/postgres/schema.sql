-- The schema of the Postgres store, version 1. {schema} is store.prefix, quoted. Run by `onceproxy store init`; every
-- statement may be run again. All moments are milliseconds since the epoch on the server's clock.
CREATE SCHEMA IF NOT EXISTS {schema};

-- One row a record id. The primary key is what enforces a claim: of two attempts that insert the same row, one does.
-- Tombstones stand in the same row, so that a late claim and the release of its token meet at the same key.
CREATE TABLE IF NOT EXISTS {schema}.records (
    hash uuid PRIMARY KEY,              -- the 32 hex characters of the record id
    route text COLLATE "C" NOT NULL,
    revision bigint NOT NULL,           -- another one after every change; a random number at first
    version smallint NOT NULL,          -- of the row's format
    encryption smallint NOT NULL,       -- the key of what is encrypted, 0: nothing is
    state smallint NOT NULL,            -- 0 absent (tombstones alone), 1 claimed, 2 unknown, 3 completed
    watched boolean NOT NULL,           -- somebody waits for a change, and is to be notified
    token uuid,                         -- the attempt that owns the record, or owned it last
    fingerprint bytea,                  -- policy (4 bytes) and digest (32 bytes)
    quoted boolean,
    attempts bigint,
    claimed_at bigint,
    abandon_at bigint,
    moment bigint,                      -- claimed: end of the lease; unknown: since when; completed: since when
    expires_at bigint,
    unknown_retention bigint,
    reason smallint,                    -- unknown: why, by its place in the list of reasons
    status integer,                     -- the response: status, fields, body (null: not kept)
    fields bytea,
    body bytea,
    prior bytea,                        -- the unknown record that this attempt took over
    tombstones bytea NOT NULL,          -- tokens that must not be granted: 16 bytes, and 8 bytes until when
    tombstones_until bigint
);
-- What the request was as it came: the block of codec/block.rs. Rows of version 1, from before this column, have none.
ALTER TABLE {schema}.records ADD COLUMN IF NOT EXISTS details bytea;

-- Bodies are replayed as they are; compressing them would cost more than it saves.
ALTER TABLE {schema}.records ALTER COLUMN body SET STORAGE EXTERNAL;

-- For operators and the gauge: the open records by age.
CREATE INDEX IF NOT EXISTS records_open ON {schema}.records (claimed_at, route, hash) WHERE state IN (1, 2);
-- For the sweep: claims by the end of their lease, and rows by the moment at which they may go.
CREATE INDEX IF NOT EXISTS records_leases ON {schema}.records (moment) WHERE state = 1;
CREATE INDEX IF NOT EXISTS records_ends ON {schema}.records ((greatest(expires_at, tombstones_until)))
    WHERE state = 0 OR state <> 1 AND expires_at IS NOT NULL;

-- Which process sweeps, until when, and what it counted last.
CREATE TABLE IF NOT EXISTS {schema}.sweep (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    holder uuid,
    until bigint NOT NULL DEFAULT 0,
    claimed bigint NOT NULL DEFAULT 0,
    unknown bigint NOT NULL DEFAULT 0
);
INSERT INTO {schema}.sweep DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS {schema}.meta (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL
);
INSERT INTO {schema}.meta (version) VALUES (1) ON CONFLICT DO NOTHING;
