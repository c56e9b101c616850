"""Floor 5: the command line, one file a command, loaded when it is called."""
