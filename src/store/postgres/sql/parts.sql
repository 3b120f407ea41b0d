-- What of the schema is there, in words.
SELECT CASE c.relkind WHEN 'i' THEN 'the index ' ELSE 'the table ' END || c.relname AS part
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = '{channel}'
    AND c.relname IN ('records', 'records_open', 'records_leases', 'records_ends', 'sweep', 'meta')
ORDER BY c.oid
