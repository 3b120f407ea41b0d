-- record.rs: lapse, of some claims whose lease is over. Rows that somebody is about to change are left for next time.
-- $1 most rows
, due AS (
    SELECT r.hash FROM {schema}.records r, clock
    WHERE r.state = 1 AND r.moment <= clock.now AND r.version IN (1, 2) AND r.encryption = 0
    ORDER BY r.moment LIMIT $1
    FOR UPDATE OF r SKIP LOCKED
), done AS (
    UPDATE {schema}.records r SET state = 2, revision = r.revision + 1, reason = 1, status = NULL, fields = NULL,
        body = NULL, expires_at = greatest(r.moment + r.unknown_retention,
            CASE WHEN r.unknown_retention IS NOT NULL THEN r.abandon_at END)
    FROM due
    WHERE r.hash = due.hash
    RETURNING r.hash, r.route, r.watched
), told AS ({told})
SELECT hash, route, (SELECT count(*) FROM told) AS told FROM done
