"""Values. No I/O, no clock, and no import of any other part of Stoker."""
