"""The API server: how it is reached (`access`), asked (`client`) and followed (`follow`), how commands run in its pods
(`execution`), and what an account may do there (`rbac`).

The door is `client.Cluster`; `follow.Follower` and `execution.Execution` go on from one, and `rbac` names the rights.
"""
