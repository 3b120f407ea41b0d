-- What of the schema is there, in words.
SELECT part FROM (
    SELECT c.oid, 0 AS place, CASE c.relkind WHEN 'i' THEN 'the index ' ELSE 'the table ' END || c.relname AS part
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = '{channel}'
        AND c.relname IN ('records', 'records_open', 'records_leases', 'records_ends', 'sweep', 'meta')
    UNION ALL
    SELECT a.attrelid, 1, 'the column details of records' FROM pg_attribute a
    WHERE a.attrelid = to_regclass('{schema}.records') AND a.attname = 'details' AND NOT a.attisdropped
) parts ORDER BY oid, place
