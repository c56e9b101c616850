"""Pods that take the steps of a run one after another, without a Job for each.

The door is `pools.WarmPods`, which needs a `pools.PoolHost`; `pooljobs` has the documents that it is given.
"""
