"""Whether NetworkPolicies of a namespace keep the pods of a gang apart. Pure.

A pod that any policy selects may be reached only as the policies that select it allow, together; one that none selects
is open. https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

from __future__ import annotations

from typing import Any, Final, Mapping, Sequence

from stoker.backends.kubernetes.objects import Object, name

EPHEMERAL: Final = (32768, 60999)
"""The first and the last of the ports that Linux chooses, among which those of ranks are:
https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)."""
_DIRECTIONS: Final = (("Ingress", "ingress", "from"), ("Egress", "egress", "to"))


def policies_between(policies: Sequence[Object], labels: Mapping[str, str], namespace: Mapping[str, str]) -> list[str]:
    """The names of policies that keep pods with these labels from each other's ports; none where they let them through,
    or where that cannot be told. `namespace` are the labels of their namespace."""
    names: list[str] = []
    for word, field, side in _DIRECTIONS:
        selecting = [policy for policy in policies if _selects(policy, labels) and word in _types(policy)]
        rules = [rule for policy in selecting for rule in policy["spec"].get(field) or ()]
        if selecting and not any(_lets_through(rule, side, labels, namespace) for rule in rules):
            names += [name(policy) for policy in selecting if name(policy) not in names]
    return names


def _types(policy: Object) -> Sequence[str]:
    spec = policy["spec"]
    return spec.get("policyTypes") or (("Ingress", "Egress") if spec.get("egress") else ("Ingress",))


def _selects(policy: Object, labels: Mapping[str, str]) -> bool:
    return matches(policy["spec"].get("podSelector") or {}, labels)


def _lets_through(rule: Object, side: str, labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    """Whether a rule may let such pods through to any port that ranks choose."""
    ports, peers = rule.get("ports") or (), rule.get(side) or ()
    if ports and not any(_has_all_ports(port) for port in ports):
        return False
    return not peers or any(_is_peer(peer, labels, namespace) for peer in peers)


def _has_all_ports(port: Object) -> bool:
    first = port.get("port")
    if port.get("protocol", "TCP") != "TCP":
        return False
    if first is None:
        return True
    last = port.get("endPort", first)
    return isinstance(first, int) and first <= EPHEMERAL[0] and last >= EPHEMERAL[1]


def _is_peer(peer: Object, labels: Mapping[str, str], namespace: Mapping[str, str]) -> bool:
    if peer.get("ipBlock") is not None:
        return True  # the pods' addresses are not known yet
    spaces, pods = peer.get("namespaceSelector"), peer.get("podSelector")
    return (spaces is None or matches(spaces, namespace)) and (pods is None or matches(pods, labels))


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes an object with these labels; an empty one takes all."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _meets(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values") or ()
    return {
        "In": key in labels and labels[key] in values,
        "NotIn": key not in labels or labels[key] not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }[requirement["operator"]]
