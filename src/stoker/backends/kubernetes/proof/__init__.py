"""What a cluster lacks, found before it costs anything: for the steps of a run (`prove`), for its artifact store
(`claim`), and for a stack as it is made (`setup`) and tried (`probe`).

The door is `prove.prove`, `claim.prove_claim`, `probe.probe`, and the functions of `setup` that the registration names.
"""
