-- What the server says of itself, which tables of the schema are there, and what this user lacks to work with them. From the
-- catalogs, which need no rights. Settings that are asked for at login are missing behind a pooler.
SELECT current_setting('server_version') AS version,
    current_setting('server_version_num')::int AS number,
    pg_is_in_recovery() AS standby,
    current_setting('transaction_read_only')::bool AS read_only,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standbys,
    current_setting('fsync')::bool AS fsync,
    current_setting('onceproxy.direct', true) IS NOT DISTINCT FROM 'yes' AS direct,
    current_user::text AS role,
    ARRAY(SELECT c.relname::text FROM pg_class c
        WHERE c.relnamespace = n.oid AND c.relname IN ('records', 'sweep', 'meta')) AS tables,
    EXISTS (SELECT FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        WHERE c.relnamespace = n.oid AND c.relname = 'records' AND a.attname = 'details' AND NOT a.attisdropped) AS details,
    EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = 'meta'
        AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')) AS tells_version,
    ARRAY(
        SELECT 'USAGE on the schema' WHERE NOT has_schema_privilege(n.oid, 'USAGE')
        UNION ALL
        (SELECT string_agg(needed.privilege, ', ' ORDER BY needed.place) || ' on ' || c.relname
        FROM pg_class c, unnest(CASE c.relname WHEN 'records' THEN ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']
            WHEN 'sweep' THEN ARRAY['SELECT', 'INSERT', 'UPDATE'] ELSE ARRAY['SELECT'] END)
            WITH ORDINALITY AS needed (privilege, place)
        WHERE c.relnamespace = n.oid AND c.relname IN ('records', 'sweep', 'meta')
            AND NOT has_table_privilege(c.oid, needed.privilege)
        GROUP BY c.relname ORDER BY c.relname)
    ) AS lacks
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = '{channel}'
