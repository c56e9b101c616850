"""Another machine by OpenSSH's own client: commands, and files of any size, over one connection."""
