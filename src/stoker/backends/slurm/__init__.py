"""Slurm: what is sent is `script`, how a job is followed `task`; all of it together is `backend`."""
