"""What the backends on AWS share: its API, the life of a job there, instance types, and how an account is set up."""
