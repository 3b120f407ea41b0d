-- Whether this process sweeps: one at a time, by a lease. Nothing is lost if this is. $1 who asks, $2 lease
WITH clock AS MATERIALIZED (SELECT {now} AS now, set_config('synchronous_commit', 'off', true) AS lazy)
UPDATE {schema}.sweep SET holder = $1, until = clock.now + $2 FROM clock WHERE holder = $1 OR until <= clock.now
RETURNING true
