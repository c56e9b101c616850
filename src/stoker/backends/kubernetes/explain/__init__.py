"""What objects of the API mean, in words: its nodes and their accelerators, why pods wait, how Jobs ended, what was
refused.

The door is `pending.why_pending`, which `explaining.Explanations` asks the cluster for, `causes.end_of`,
`refusals.refusal_of`, and `nodes.cluster_nodes` with the names of `nodelabels`.
"""
