"""SkyPilot; `flavors` and its modules have the paths that ZenML's users import settings from."""
