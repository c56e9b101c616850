"""What Stoker costs: `make bench`."""
