-- Begins every statement that writes. The server's clock; and in this transaction alone a wait for a lock that ends, and a
-- commit that is on disk before it is answered, whatever the database's settings say.
WITH clock AS MATERIALIZED (
    SELECT {now} AS now,
        set_config('lock_timeout', '{lock_timeout}', true) AS bounded,
        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
            THEN set_config('synchronous_commit', 'on', true) END AS durable
)
