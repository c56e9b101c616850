"""What objects of the API mean, in words: nodes and their accelerators, why pods wait, how Jobs ended, what is refused.

Other folders use `nodes.cluster_nodes`, `nodelabels`, `pending.why_pending`, `pending.Explanations`, `causes.end_of`,
and `refusals.refusal_of`; `registration` names `nodes.nodes`.
"""
