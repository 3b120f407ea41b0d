SELECT claimed, unknown FROM {schema}.sweep
