"""The schema's history. Ships in the wheel; read by `server.store.schema.migrate`, which finds it as a package."""
