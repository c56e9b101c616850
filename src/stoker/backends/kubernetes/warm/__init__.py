"""Pods that take the steps of a run one after another, without a Job for each.

Other folders use `pools.WarmPods`, and give it the methods of `pools.PoolHost`.
"""
