"""The Slurm backend: `script` makes what is submitted, `task` follows a job, `backend` joins them."""
