"""From a called pipeline to a finished run: session, plan, engine, terminal."""
