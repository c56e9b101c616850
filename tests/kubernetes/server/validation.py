"""The checks that the API server makes of new Jobs and pods, in its words (recorded in scenario 19)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction

from tests.kubernetes.server.failures import Cause, Refused, bad_request
from tests.kubernetes.server.objects import Object, amount
from tests.kubernetes.server.schemas import flaws

_LABEL_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_LABEL_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_GO_TYPES = {"integer": "int32", "boolean": "bool", "number": "float64"}
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SERVICE = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_TOO_LONG = "must be no more than 63 bytes"
_ANNOTATIONS = 256 * 1024
_SECONDS = "must be between 1 and 2147483647, inclusive"
_NOT_NEGATIVE = "must be greater than or equal to 0"
_PARALLELISM = 100_000
"""Pods of an Indexed Job that run at once at most."""
_DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
_POLICIES = ("Always", "OnFailure", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_HOST_PATHS = (
    "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket",
)  # fmt: skip
_NEEDED_OF_VOLUMES = {
    "configMap": "name", "secret": "secretName", "persistentVolumeClaim": "claimName", "hostPath": "path",
    "nfs": "path",
}  # fmt: skip


def check_encoding(body: Object, kind: str) -> None:
    """Refuse what cannot even be read into the kind's fields.

    Raises:
        Refused: 400: a value of another type than its field's, or a quantity that is none.
    """
    for flaw in flaws(kind, body):
        if flaw.fault == "type":
            place = re.sub(r"\[[^]]*\]", "", flaw.path)
            value, wanted = _json_word(flaw.value), _GO_TYPES.get(flaw.wanted, flaw.wanted)
            text = f"json: cannot unmarshal {value} into Go struct field {flaw.owner}.{place} of type {wanted}"
            raise _unreadable(kind, text)
    spec = body.get("spec") or {}
    template = spec.get("template", {}).get("spec", {}) if kind == "Job" else spec if kind == "Pod" else {}
    for container in [*(template.get("initContainers") or []), *(template.get("containers") or [])]:
        for quantities in (container.get("resources") or {}).values():
            for quantity in quantities.values() if isinstance(quantities, dict) else ():
                try:
                    amount(quantity)
                except ValueError:
                    expression = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
                    raise _unreadable(kind, f"quantities must match the regular expression '{expression}'") from None


def _unreadable(kind: str, why: str) -> Refused:
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {why}')


def _json_word(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    return {int: "number", float: "number", dict: "object", list: "array", str: "string"}.get(type(value), "null")


def metadata_causes(object: Object) -> list[Cause]:
    """What is wrong with an object's name, labels, annotations, owners and finalizers."""
    metadata = object["metadata"]
    causes = list(_name_causes(object["kind"], metadata["name"]))
    causes += _label_causes(metadata.get("labels") or {}, "metadata.labels")
    annotations = metadata.get("annotations") or {}
    for key in annotations:
        causes += _key_causes(key.lower(), "metadata.annotations", shown=key)
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > _ANNOTATIONS:
        causes.append(Cause.too_long("metadata.annotations", _ANNOTATIONS))
    causes += _owner_causes(metadata.get("ownerReferences") or [])
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        causes += _key_causes(finalizer, "metadata.finalizers")
        if "/" not in finalizer and finalizer not in ("foregroundDeletion", "orphan", "kubernetes"):
            why = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(Cause.invalid(f"metadata.finalizers[{index}]", f'"{finalizer}"', why))
    return causes


def _name_causes(kind: str, name: str) -> Iterator[Cause]:
    path, shown = "metadata.name", f'"{name}"'
    if kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
        if name in (".", "..") or re.search("[/%]", name):
            yield Cause.invalid(path, shown, "may not be '.' or '..', or contain '/' or '%'")
    elif kind == "Namespace":
        yield from _dns_label_causes(name, path)
    elif kind == "Service":
        if len(name) > 63:
            yield Cause.invalid(path, shown, _TOO_LONG)
        if not re.fullmatch(_SERVICE, name):
            why = (
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
                "character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for "
                f"validation is '{_SERVICE}')"
            )
            yield Cause.invalid(path, shown, why)
    else:
        yield from _subdomain_causes(name, path)


def _subdomain_causes(name: str, path: str) -> Iterator[Cause]:
    if len(name) > 253:
        yield Cause.invalid(path, f'"{name}"', "must be no more than 253 bytes")
    if not re.fullmatch(_SUBDOMAIN, name):
        why = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
            f"'{_SUBDOMAIN}')"
        )
        yield Cause.invalid(path, f'"{name}"', why)


def _dns_label_causes(name: str, path: str) -> Iterator[Cause]:
    if len(name) > 63:
        yield Cause.invalid(path, f'"{name}"', _TOO_LONG)
    if not re.fullmatch(_DNS_LABEL, name):
        why = (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and "
            "end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
            f"'{_DNS_LABEL}')"
        )
        yield Cause.invalid(path, f'"{name}"', why)


def _owner_causes(owners: list[Object]) -> Iterator[Cause]:
    path = "metadata.ownerReferences"
    for owner in owners:
        for field, word in (("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")):
            if not owner.get(field):
                yield Cause.invalid(f"{path}.{field}", '""', f"{word} must not be empty")
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        names = " and ".join(f"{owner.get('kind')}/{owner.get('name')}" for owner in controllers[:2])
        why = f'Only one reference can have Controller set to true. Found "true" in references for {names}'
        yield Cause.invalid(path, "[]", why)


def _key_causes(key: str, path: str, shown: str = "") -> Iterator[Cause]:
    """What is wrong with a qualified name: the key of a label or an annotation."""
    prefix, slash, name = key.rpartition("/")
    shown = f'"{shown or key}"'
    if slash and not re.fullmatch(_SUBDOMAIN, prefix):
        why = "prefix part must be non-empty" if not prefix else f"prefix part must be a DNS subdomain: {_SUBDOMAIN}"
        yield Cause.invalid(path, shown, why)
    if len(name) > 63:
        yield Cause.invalid(path, shown, "name part must be no more than 63 bytes")
    if not re.fullmatch(_LABEL_NAME, name):
        yield Cause.invalid(
            path,
            shown,
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
            "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_LABEL_NAME}')",
        )


def _label_causes(labels: Object, path: str) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _key_causes(key, path)
        if len(value) > 63:
            yield Cause.invalid(path, f'"{value}"', _TOO_LONG)
        elif not re.fullmatch(_LABEL_VALUE, value):
            yield Cause.invalid(
                path,
                f'"{value}"',
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and "
                "must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', "
                f"regex used for validation is '{_LABEL_VALUE}')",
            )


def job_causes(job: Object) -> list[Cause]:
    """What is wrong with a Job."""
    name, spec = job["metadata"]["name"], job.get("spec") or {}
    if not spec.get("template", {}).get("spec"):
        return [Cause.required("spec.template.spec.containers")]
    template = spec["template"]
    causes = list(count_causes(spec))
    indexed = spec.get("completionMode") == "Indexed"
    if "selector" in spec and not spec.get("manualSelector"):
        causes.append(Cause.invalid("spec.selector", json.dumps(spec["selector"]), "`selector` not auto-generated"))
    if indexed and len(name) <= 63:
        last = f"{name}-{max(int(spec.get('completions', spec.get('parallelism', 1))) - 1, 0)}"
        if len(last) > 63:
            why = f"will not able to create pod with invalid DNS label: {last}"
            causes.append(Cause.invalid("metadata.name", f'"{name}"', why))
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    given = {"batch.kubernetes.io/job-name": name, "job-name": name}
    causes += _label_causes(labels | given, "spec.template.labels")
    if not indexed and "backoffLimitPerIndex" in spec:
        limit = spec["backoffLimitPerIndex"]
        causes.append(Cause.invalid("spec.backoffLimitPerIndex", str(limit), "requires indexed completion mode"))
    causes += pod_causes(template["spec"], "spec.template.spec")
    restart = template["spec"].get("restartPolicy", "Always")
    if restart not in ("Never", "OnFailure"):
        causes.append(Cause.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"'))
    if "podFailurePolicy" in spec:
        if restart == "OnFailure":
            why = 'only "Never" is supported when podFailurePolicy is specified'
            causes.append(Cause.invalid("spec.template.spec.restartPolicy", '"OnFailure"', why))
        if spec.get("podReplacementPolicy", "Failed") != "Failed":
            path = "spec.podReplacementPolicy"
            causes.append(Cause.unsupported(path, spec["podReplacementPolicy"], ["Failed"]))
        causes += _policy_causes(spec, spec["podFailurePolicy"].get("rules", []))
    return causes


def count_causes(spec: Object) -> Iterator[Cause]:
    """What is wrong with a Job's numbers and words."""
    for field in (
        "parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished",
        "backoffLimitPerIndex", "maxFailedIndexes",
    ):  # fmt: skip
        if (spec.get(field) or 0) < 0:
            yield Cause.invalid(f"spec.{field}", str(spec[field]), _NOT_NEGATIVE)
    mode = spec.get("completionMode", "NonIndexed")
    if mode not in ("NonIndexed", "Indexed"):
        yield Cause.unsupported("spec.completionMode", mode, ["NonIndexed", "Indexed"])
    parallelism, completions = spec.get("parallelism"), spec.get("completions")
    if mode == "Indexed":
        if completions is None and parallelism is not None:
            yield Cause.required("spec.completions", "when completion mode is Indexed")
        if (parallelism or 0) > _PARALLELISM:
            why = f"must be less than or equal to {_PARALLELISM} when completion mode is Indexed"
            yield Cause.invalid("spec.parallelism", str(parallelism), why)
    most = spec.get("maxFailedIndexes")
    if most is not None:
        if "backoffLimitPerIndex" not in spec:
            yield Cause.required("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
        if completions is not None and most > completions:
            yield Cause.invalid("spec.maxFailedIndexes", str(most), "must be less than or equal to completions")
    replacement = spec.get("podReplacementPolicy", "Failed")
    if replacement not in ("Failed", "TerminatingOrFailed"):
        yield Cause.unsupported("spec.podReplacementPolicy", replacement, ["Failed", "TerminatingOrFailed"])


def _policy_causes(spec: Object, rules: list[Object]) -> Iterator[Cause]:
    template = spec["template"]["spec"]
    names = [each.get("name") for field in ("containers", "initContainers") for each in template.get(field) or []]
    for index, rule in enumerate(rules):
        where = f"spec.podFailurePolicy.rules[{index}]"
        if rule["action"] not in ("FailJob", "FailIndex", "Ignore", "Count"):
            yield Cause.unsupported(f"{where}.action", rule["action"], ["Count", "FailIndex", "FailJob", "Ignore"])
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield Cause.invalid(f"{where}.action", '"FailIndex"', "requires the backoffLimitPerIndex to be set")
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        if codes and conditions:
            why = "specifying both OnExitCodes and OnPodConditions is not supported"
            yield Cause.invalid(where, json.dumps(rule), why)
        if not codes:
            if not conditions:
                why = "specifying one of OnExitCodes and OnPodConditions is required"
                yield Cause.invalid(where, json.dumps(rule), why)
            continue
        if codes.get("containerName") not in (None, *names):
            why = "must be one of the container or initContainer names in the pod template"
            yield Cause.invalid(f"{where}.onExitCodes.containerName", f'"{codes["containerName"]}"', why)
        if codes["operator"] not in ("In", "NotIn"):
            yield Cause.unsupported(f"{where}.onExitCodes.operator", codes["operator"], ["In", "NotIn"])
        path, values = f"{where}.onExitCodes.values", codes.get("values", [])
        if values != sorted(values):
            yield Cause.invalid(path, json.dumps(values), "must be ordered")
        if not values:
            yield Cause.invalid(path, "[]", "at least one value is required")
        elif rule["onExitCodes"]["operator"] == "In" and 0 in values:
            yield Cause.invalid(f"{path}[{values.index(0)}]", "0", "must not be 0 for the In operator")


def pod_causes(spec: Object, path: str) -> list[Cause]:
    """What is wrong with a pod's specification, which is at `path`."""
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(Cause.required(f"{path}.containers"))
    volumes = {each["name"] for each in spec.get("volumes") or []}
    names: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            if container.get("name") in names:
                causes.append(Cause.duplicate(f"{path}.{field}[{index}].name", container["name"]))
            names.add(container.get("name", ""))
            causes += _container_causes(container, f"{path}.{field}[{index}]", volumes)
    causes += _volume_causes(spec.get("volumes") or [], f"{path}.volumes")
    causes += _toleration_causes(spec.get("tolerations") or [], f"{path}.tolerations")
    for field, known in (("restartPolicy", _POLICIES), ("dnsPolicy", _DNS_POLICIES)):
        if spec.get(field, known[0]) not in known and not (field == "restartPolicy" and path != "spec"):
            causes.append(Cause.unsupported(f"{path}.{field}", spec[field], known))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2147483647:
        causes.append(Cause.invalid(f"{path}.activeDeadlineSeconds", str(deadline), _SECONDS))
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            causes += _dns_label_causes(spec[field], f"{path}.{field}")
    for field in ("serviceAccountName", "nodeName"):
        if spec.get(field):
            causes += _subdomain_causes(spec[field], f"{path}.{field}")
    causes += _label_causes(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    causes += _affinity_causes(spec, path)
    context = spec.get("securityContext") or {}
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        if (context.get(field) or 0) < 0:
            why = "must be between 0 and 2147483647, inclusive"
            causes.append(Cause.invalid(f"{path}.securityContext.{field}", str(context[field]), why))
    return causes


def _volume_causes(volumes: list[Object], path: str) -> Iterator[Cause]:
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume["name"]
        if name in names:
            yield Cause.duplicate(f"{where}.name", name)
        names.add(name)
        yield from _dns_label_causes(name, f"{where}.name")
        kinds = [kind for kind in volume if kind != "name" and volume[kind] is not None]
        for kind in kinds[1:]:
            yield Cause.forbidden(f"{where}.{kind}", "may not specify more than 1 volume type")
        for kind in kinds[:1]:
            needed = _NEEDED_OF_VOLUMES.get(kind)
            if needed and not volume[kind].get(needed):
                yield Cause.required(f"{where}.{kind}.{needed}")
            if kind == "hostPath" and volume[kind].get("type") not in (None, *_HOST_PATHS):
                yield Cause.unsupported(f"{where}.hostPath.type", volume[kind]["type"], _HOST_PATHS)


def _toleration_causes(tolerations: list[Object], path: str) -> Iterator[Cause]:
    for index, each in enumerate(tolerations):
        where, operator = f"{path}[{index}]", each.get("operator") or "Equal"
        if each.get("key"):
            yield from _key_causes(each["key"], f"{where}.key")
        elif operator != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield Cause.invalid(f"{where}.operator", f'"{operator}"', why)
        if each.get("tolerationSeconds") is not None and each.get("effect") != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield Cause.invalid(f"{where}.effect", f'"{each.get("effect", "")}"', why)
        if operator == "Exists" and each.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            yield Cause.invalid(f"{where}.operator", f'"{each["value"]}"', why)
        elif operator not in ("Equal", "Exists"):
            yield Cause.unsupported(f"{where}.operator", operator, ["Equal", "Exists"])
        if each.get("effect") not in (None, "", *_EFFECTS):
            yield Cause.unsupported(f"{where}.effect", each["effect"], _EFFECTS)


def _affinity_causes(spec: Object, path: str) -> Iterator[Cause]:
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    where = f"{path}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return
    if not required.get("nodeSelectorTerms"):
        yield Cause.required(where, "must have at least one node selector term")
    for number, term in enumerate(required.get("nodeSelectorTerms") or []):
        for index, expression in enumerate(term.get("matchExpressions") or []):
            place = f"{where}[{number}].matchExpressions[{index}]"
            operator, values = expression.get("operator", ""), expression.get("values") or []
            if operator in ("In", "NotIn") and not values:
                yield Cause.required(f"{place}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            elif operator in ("Exists", "DoesNotExist") and values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield Cause.forbidden(f"{place}.values", why)
            elif operator in ("Gt", "Lt") and len(values) != 1:
                yield Cause.required(
                    f"{place}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
                )
            elif operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
                yield Cause.invalid(f"{place}.operator", f'"{operator}"', "not a valid selector operator")


def _container_causes(container: Object, path: str, volumes: set[str]) -> Iterator[Cause]:
    if container.get("name"):
        yield from _dns_label_causes(container["name"], f"{path}.name")
    image = container.get("image")
    if not image:
        yield Cause.required(f"{path}.image")
    elif image != image.strip():
        yield Cause.invalid(f"{path}.image", f'"{image}"', "must not have leading or trailing whitespace")
    message = container.get("terminationMessagePolicy", "File")
    if message not in ("File", "FallbackToLogsOnError"):
        yield Cause.unsupported(f"{path}.terminationMessagePolicy", message, ["FallbackToLogsOnError", "File"])
    for index, port in enumerate(container.get("ports") or []):
        if not 1 <= port.get("containerPort", 0) <= 65535:
            why = "must be between 1 and 65535, inclusive"
            yield Cause.invalid(f"{path}.ports[{index}].containerPort", str(port.get("containerPort", 0)), why)
    policy = container.get("imagePullPolicy", "Always")
    if policy not in ("Always", "IfNotPresent", "Never"):
        yield Cause.unsupported(f"{path}.imagePullPolicy", policy, ["Always", "IfNotPresent", "Never"])
    yield from _variable_causes(container.get("env") or [], f"{path}.env")
    places: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("mountPath") in places:
            yield Cause.invalid(f"{path}.volumeMounts[{index}].mountPath", f'"{mount["mountPath"]}"', "must be unique")
        places.add(mount.get("mountPath", ""))
        if mount["name"] not in volumes:
            yield Cause.not_found(f"{path}.volumeMounts[{index}].name", mount["name"])
    yield from _resource_causes(container.get("resources") or {}, f"{path}.resources")


def _variable_causes(variables: list[Object], path: str) -> Iterator[Cause]:
    for index, variable in enumerate(variables):
        if "=" in variable["name"] or not re.fullmatch(r"[ -~]+", variable["name"]):
            why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            yield Cause.invalid(f"{path}[{index}].name", f'"{variable["name"]}"', why)
        source, where = variable.get("valueFrom"), f"{path}[{index}].valueFrom"
        if source is not None:
            if variable.get("value"):
                yield Cause.invalid(where, '""', "may not be specified when `value` is not empty")
            if not source:
                yield Cause.invalid(
                    where,
                    '""',
                    "must specify one of: `fieldRef`, `resourceFieldRef`, "
                    "`configMapKeyRef`, `secretKeyRef`, or `fileKeyRef`",
                )
            elif len(source) > 1:
                yield Cause.invalid(where, '""', "may not have more than one field specified at a time")


def _resource_causes(resources: Object, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for word, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
            if name not in _STANDARD and "/" not in name and not name.startswith("hugepages-"):
                for why in (
                    "must be a standard resource type or fully qualified",
                    "must be a standard resource for containers",
                ):
                    yield Cause.invalid(f"{path}.{word}[{name}]", f'"{name}"', why)
                continue
            if amount(quantity) < 0:
                yield Cause.invalid(f"{path}.{word}[{name}]", f'"{quantity}"', "must be greater than or equal to 0")
            elif _extended(name) and amount(quantity).denominator != 1:
                yield Cause.invalid(f"{path}.{word}[{name}]", f'"{_canonical(quantity)}"', "must be an integer")
    for name, quantity in requests.items():
        if name in limits and _extended(name) and amount(quantity) != amount(limits[name]):
            why = f"must be equal to {name} limit of {limits[name]}"
            yield Cause.invalid(f"{path}.requests", f'"{quantity}"', why)
        elif name in limits and amount(quantity) > amount(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield Cause.invalid(f"{path}.requests", f'"{quantity}"', why)
        elif name not in limits and _extended(name) and "/" in name:
            yield Cause.required(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _extended(name: str) -> bool:
    return name not in _STANDARD and not name.startswith("hugepages-")


def _canonical(quantity: str | float) -> str:
    value = amount(quantity) * 1000
    return f"{int(value)}m" if value == Fraction(int(value)) else str(quantity)
