-- The outcome of a rule, if the row is still the one that the rule was applied to.
-- $1 hash, $2 route, $3 revision that was found, $4 state, $5 token, $6 fingerprint, $7 quoted, $8 attempts,
-- $9 claimed_at, $10 abandon_at, $11 moment, $12 expires_at, $13 unknown_retention, $14 reason, $15 status, $16 fields,
-- $17 body, $18 prior, $19 tombstones, $20 tombstones_until, $21 details
, done AS (
    UPDATE {schema}.records r SET route = $2, revision = r.revision + 1, version = 2, encryption = 0, state = $4,
        token = $5, fingerprint = $6, quoted = $7, attempts = $8, claimed_at = $9, abandon_at = $10, moment = $11,
        expires_at = $12, unknown_retention = $13, reason = $14, status = $15, fields = $16, body = $17, prior = $18,
        tombstones = $19, tombstones_until = $20, details = $21
    FROM clock
    WHERE r.hash = $1 AND r.revision = $3
    RETURNING r.hash, r.route, r.watched
), told AS ({told})
SELECT {echo}, EXISTS (SELECT FROM done) AS done, (SELECT count(*) FROM told) AS told
