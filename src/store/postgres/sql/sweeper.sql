-- Whether this process sweeps: one at a time, by a lease. Nothing is lost if this is; a row that is missing is put back.
-- $1 who asks, $2 lease
WITH clock AS MATERIALIZED (SELECT {now} AS now, set_config('synchronous_commit', 'off', true) AS lazy),
taken AS (
    UPDATE {schema}.sweep SET holder = $1, until = clock.now + $2 FROM clock WHERE holder = $1 OR until <= clock.now
    RETURNING holder
), put_back AS (
    INSERT INTO {schema}.sweep (holder, until) SELECT $1, clock.now + $2 FROM clock
    WHERE NOT EXISTS (SELECT FROM {schema}.sweep)
    ON CONFLICT DO NOTHING
    RETURNING holder
)
SELECT false AS put_back FROM taken UNION ALL SELECT true FROM put_back
