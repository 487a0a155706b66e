"""Alembic environment: runs on the connection that the caller opened and locked, never on a URL of its own.

`server.store.schema` puts the connection (and, for comparisons, the metadata) into
``config.attributes``, so that the programme, the tests and a developer's revision share one way in.
"""

from alembic import context

from migrations.partitions import include_object


def run() -> None:
    """Apply the revisions on ``config.attributes["connection"]``, inside the transaction it is already in."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=context.config.attributes.get("metadata"),
        include_object=include_object,
        # Alembic believes SQLite cannot roll DDL back; it can, when the transaction was begun by hand, as ours is.
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
