"""The API server: how it is reached (`access`), asked (`client`) and followed (`follow`), how commands run in its pods
(`execution`), and what an account may do there (`rbac`).

Other folders use `client.Cluster`, what goes on from one, which is `follow.Follower` and `execution.Execution`, and the
rights of `rbac`.
"""
