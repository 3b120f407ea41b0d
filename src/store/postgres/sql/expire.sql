-- Frees what has expired. $1 most rows
, due AS (
    SELECT r.hash FROM {schema}.records r, clock
    WHERE (r.state = 0 OR r.state <> 1 AND r.expires_at IS NOT NULL)
        AND greatest(r.expires_at, r.tombstones_until) <= clock.now
    ORDER BY greatest(r.expires_at, r.tombstones_until) LIMIT $1
    FOR UPDATE OF r SKIP LOCKED
), done AS (
    DELETE FROM {schema}.records r USING due WHERE r.hash = due.hash RETURNING r.hash
)
SELECT count(*) FROM done
