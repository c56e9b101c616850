"""What ZenML's names do here, by subject; users import them from the package above."""
