"""How what a person asks for is parsed: every option, whichever way it came."""
