-- What the server says of itself. Settings that are asked for at login are missing behind a pooler.
SELECT current_setting('server_version') AS version,
    current_setting('server_version_num')::int AS number,
    pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only')::bool AS read_only,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standbys,
    current_setting('fsync')::bool AS fsync,
    current_setting('onceproxy.direct', true) IS NOT DISTINCT FROM 'yes' AS direct,
    to_regclass('{meta}') IS NOT NULL AS has_schema
