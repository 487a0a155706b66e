"""Bytes to rows, without network: JSON lines, Parquet, SQLite, protobuf and others."""
