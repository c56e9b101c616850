"""Floor 2: what is kept. Rows in a database, bytes under their digest, log lines in files."""
