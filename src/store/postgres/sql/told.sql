SELECT pg_notify('{channel}', route || ':' || encode(uuid_send(hash), 'hex')) FROM done WHERE watched
