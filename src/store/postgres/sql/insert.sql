-- The outcome of a rule that found no row: of two attempts at it one succeeds. Parameters as in replace.sql.
, done AS (
    INSERT INTO {schema}.records AS r (hash, route, revision, version, encryption, state, watched, token, fingerprint,
        quoted, attempts, claimed_at, abandon_at, moment, expires_at, unknown_retention, reason, status, fields, body,
        prior, tombstones, tombstones_until, details)
    SELECT $1, $2, $3, 2, 0, $4, false, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21
    FROM clock
    ON CONFLICT (hash) DO NOTHING
    RETURNING r.hash
)
SELECT {echo}, EXISTS (SELECT FROM done) AS done
