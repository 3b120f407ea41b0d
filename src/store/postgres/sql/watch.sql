-- Asks to be notified of the end of a claim. Notifications are sent one transaction after the other, so only records for
-- which somebody waits send any. $1 hash
UPDATE {schema}.records SET watched = true WHERE hash = $1 AND state = 1 AND NOT watched
