"""Data and models on the node where a step runs: brought once, checked, shared by its steps, removed by size."""
