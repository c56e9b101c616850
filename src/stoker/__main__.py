"""`python -m stoker` is `stoker`."""

from stoker.cli.main import main

main()
