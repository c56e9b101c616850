"""How ranks are started: pure functions from the worker's command and a node's place to a launcher's command."""
