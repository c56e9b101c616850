"""What a cluster lacks, found before it costs anything: for the steps of a run (`prove`), and for a stack as it is made
(`setup`) and tried (`probe`).

Other folders use `prove.prove` and `prove.prove_claim`, and of `probe` what a detached driver's account lacks;
`registration` names `probe.probe` and the functions of `setup`.
"""
