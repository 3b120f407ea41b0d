SELECT version FROM {schema}.meta
