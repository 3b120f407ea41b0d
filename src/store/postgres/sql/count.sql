-- Counts the open records, and writes it down for the other processes.
WITH lazy AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)),
counted AS (
    SELECT count(*) FILTER (WHERE state = 1) AS claimed, count(*) FILTER (WHERE state = 2) AS unknown
    FROM {schema}.records WHERE state IN (1, 2)
)
UPDATE {schema}.sweep s SET claimed = c.claimed, unknown = c.unknown FROM counted c, lazy
RETURNING s.claimed, s.unknown
