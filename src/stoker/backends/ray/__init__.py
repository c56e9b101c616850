"""Ray: what is sent is `tasks`, to whom `jobs`; all of it together is `backend`."""
