"""Whether the proof of a plan says what is true: sourced cases, and the runner that puts them to the planner."""
