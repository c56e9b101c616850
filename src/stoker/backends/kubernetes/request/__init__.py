"""From a step and its settings to what the API server is sent: pods, Jobs, the programs that run in them, and the claim
that may be the artifact store. Pure, but for `claims.ClaimFiles`.

The door is `jobs.manifest` with `jobs.entry`, `pods.pod_template`, `check.check`, and `claims.claim_store`.
"""
