"""What a distribution can add to Stoker, one of each."""
