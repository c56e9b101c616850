"""The store: rows in a database, bytes under their digest, log lines in files."""
