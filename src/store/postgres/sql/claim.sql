-- record.rs: claim, of a record that is absent and whose token has no tombstone: else there is a row, which is answered.
-- $1 hash, $2 route, $3 revision, $4 token, $5 fingerprint, $6 quoted, $7 lease, $8 abandon_after, $9 unknown_retention,
-- $10 details
, granted AS (
    INSERT INTO {schema}.records AS r (hash, route, revision, version, encryption, state, watched, token, fingerprint,
        quoted, attempts, claimed_at, abandon_at, moment, unknown_retention, tombstones, details)
    SELECT $1, $2, $3, 2, 0, 1, false, $4, $5, $6, 1, now, now + $8, now + $7, $9, '', $10
    FROM clock
    ON CONFLICT (hash) DO NOTHING
    RETURNING r.hash
)
SELECT {echo}, clock.now, EXISTS (SELECT FROM granted) AS done, {columns}
FROM clock LEFT JOIN {schema}.records r ON r.hash = $1 AND NOT EXISTS (SELECT FROM granted)
