-- record.rs: renew, of a claim that is alive and the attempt's own; anything else is answered with the row.
-- $1 hash, $2 token, $3 lease
, done AS (
    UPDATE {schema}.records r SET moment = clock.now + $3, revision = r.revision + 1
    FROM clock
    WHERE r.hash = $1 AND r.token = $2 AND r.state = 1 AND r.moment > clock.now AND r.version IN (1, 2) AND r.encryption = 0
    RETURNING r.hash
)
SELECT {echo}, clock.now, EXISTS (SELECT FROM done) AS done, {columns}
FROM clock LEFT JOIN {schema}.records r ON r.hash = $1 AND NOT EXISTS (SELECT FROM done)
