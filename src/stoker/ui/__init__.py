"""`stoker ui`: what a store has, as pages that a server renders, and the same as JSON.

Reads through the client alone, and starts what changes a run as a command line of `stoker`. Starlette, Jinja and
uvicorn are imported here and nowhere else.
"""
