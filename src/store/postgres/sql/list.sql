-- Open records, oldest first, as they are shown at this moment.
-- $1 claimed_at, $2 route, $3 hash (where the last page ended), $4 route that is wanted or null,
-- $5 1 claimed or 2 unknown alone, or null, $6 most rows
SELECT clock.now, false AS done, {columns}
FROM (SELECT {now} AS now) clock, {schema}.records r
WHERE r.state IN (1, 2) AND (r.claimed_at, r.route, r.hash) > ($1, $2 COLLATE "C", $3)
    AND ($4::text IS NULL OR r.route = $4)
    AND ($5::smallint IS NULL OR $5 = CASE WHEN r.state = 1 AND r.moment > clock.now THEN 1 ELSE 2 END)
    AND (r.expires_at IS NULL OR r.expires_at > clock.now)
ORDER BY r.claimed_at, r.route, r.hash
LIMIT $6
