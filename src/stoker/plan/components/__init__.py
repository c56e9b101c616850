"""What is known of each thing that a step's accelerators depend on: one `ProofComponent` for each, by subject.

`base` is the type with the functions that components share, `registry` the table of all of them. A module per subject
has a table of facts, each row with its source, and the check that reads it.
"""
