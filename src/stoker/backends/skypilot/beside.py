"""How commands run beside a step on a cluster of SkyPilot: by ssh, for which SkyPilot names each of its machines.

https://docs.skypilot.co/en/latest/examples/interactive-development.html#ssh: the head is called as the cluster, and
the others CLUSTER-worker1 and so on. Containers of SkyPilot's are what such a login leads into.
"""

from __future__ import annotations

from typing import Any, Iterator, Mapping

from stoker.backends.base.beside import Beside, RunningAttempt, no_way
from stoker.core.errors import Away
from stoker.core.hosts import Address
from stoker.ssh.connection import Ssh


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The machines of the attempt's cluster; a `UsageError` where it has none that this machine reaches.

    The connections stay open as long as this process.
    """
    cluster = str(attempt.identity.get("cluster", ""))
    if not cluster:
        name = str(attempt.identity.get("name") or "ID")
        raise no_way(
            attempt,
            "ssh reaches clusters, and this job has none yet, or is managed by SkyPilot's controller",
            fix=f"read what it writes: stoker logs {attempt.run} {attempt.key}, or sky jobs logs --name {name}",
        )
    for node in range(int(attempt.identity.get("machines", 1))):
        host = f"{cluster}-worker{node}" if node else cluster
        machine = Ssh(Address(host))
        try:
            argv, terminal = machine.client(), machine.client(terminal=True)
        except Away as error:
            machine.close()
            fix = (
                f"have SkyPilot write the name for ssh here: sky status {cluster}; then see what `ssh {host} true` says"
            )
            raise no_way(attempt, error.message, fix=fix) from None
        yield Beside(where=host, argv=argv, terminal=terminal, inner=(), environment=attempt.environment)
