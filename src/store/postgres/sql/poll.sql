-- Those of the records that are still claimed, and by whom. $1 hashes
SELECT hash, token FROM {schema}.records WHERE hash = ANY ($1) AND state = 1
