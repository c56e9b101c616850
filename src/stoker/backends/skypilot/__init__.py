"""SkyPilot: steps on machines of any cloud, through its command line."""
