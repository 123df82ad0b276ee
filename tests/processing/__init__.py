"""Processing jobs: the model, the job file, the shards on this machine, and what earlier runs wrote."""
