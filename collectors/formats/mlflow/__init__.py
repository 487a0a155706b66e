"""MLflow's stores: database, folder of files, tracking server."""
