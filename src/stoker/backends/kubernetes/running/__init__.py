"""What is on a cluster while runs go on: Jobs from their creation (`sending`) to their end (`handles`, `ending`),
commands beside steps (`beside`), and detached drivers (`detach`).

Other folders use `sending.Sender`, `handles.KubernetesHandle` with the functions about one, and the functions of
`ending`; `registration` and `backend` name the others.
"""
