"""From a step and its settings to what the API server is sent: pods, Jobs, and the programs of pods. Pure, but for the
files on a claim that is the artifact store (`claims`).

Other folders use `check`, `pods.pod_template`, the functions of `jobs`, and of `claims` `claim_store` and `ClaimFiles`.
"""
