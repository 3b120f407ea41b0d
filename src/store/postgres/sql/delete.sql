-- A rule found nothing left to keep. $1 hash, $2 revision that was found
, done AS (
    DELETE FROM {schema}.records r USING clock
    WHERE r.hash = $1 AND r.revision = $2
    RETURNING r.hash, r.route, r.watched
), told AS ({told})
SELECT {echo}, EXISTS (SELECT FROM done) AS done, (SELECT count(*) FROM told) AS told
