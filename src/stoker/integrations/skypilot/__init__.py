"""SkyPilot; the modules of `flavors` have the paths that ZenML's users import settings from."""
