"""The function form: user code becomes a `core.graph.Graph`. Knows nothing of where or how it will run."""
