"""Shows runs to people: in the terminal, and as pages of HTML."""
