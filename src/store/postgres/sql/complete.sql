-- record.rs: complete, of a claim that is still the attempt's own; anything else is answered with the row.
-- $1 hash, $2 token, $3 retention, $4 status, $5 fields, $6 body
, done AS (
    UPDATE {schema}.records r SET state = 3, revision = r.revision + 1, moment = clock.now,
        expires_at = clock.now + $3, reason = NULL, status = $4, fields = $5, body = $6, prior = NULL
    FROM clock
    WHERE r.hash = $1 AND r.token = $2 AND r.state = 1 AND r.version IN (1, 2) AND r.encryption = 0
    RETURNING r.hash, r.route, r.watched
), told AS ({told})
SELECT {echo}, clock.now, EXISTS (SELECT FROM done) AS done, (SELECT count(*) FROM told) AS told, {columns}
FROM clock LEFT JOIN {schema}.records r ON r.hash = $1 AND NOT EXISTS (SELECT FROM done)
