"""The command line; the modules of commands are loaded when one is called."""
