"""The schema's history. Ships in the wheel; read by `server.store.schema`, which finds it as a package."""
