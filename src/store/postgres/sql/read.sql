-- A record as it is, without a body that is too large to come along. $1 hash
SELECT {echo}, clock.now, false AS done, {columns}
FROM (SELECT {now} AS now) clock LEFT JOIN {schema}.records r ON r.hash = $1
