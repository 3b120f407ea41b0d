-- A tombstone for a record that stays as it is. $1 hash, $2 revision that was found, $3 tombstones, $4 tombstones_until
, done AS (
    UPDATE {schema}.records r SET revision = r.revision + 1, tombstones = $3, tombstones_until = $4
    FROM clock
    WHERE r.hash = $1 AND r.revision = $2
    RETURNING r.hash
)
SELECT {echo}, EXISTS (SELECT FROM done) AS done
