"""Accelerator vendors: one value each, which says how their devices are found, handed out, proved and watched."""
