"""Floor 2: user code becomes a `core.graph.Graph`. Knows nothing of where or how it will run."""
