"""The checks that the API server makes of new Jobs and pods, in its words (recorded in scenario 19)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from tests.kubernetes.server.failures import Cause, Refused, bad_request, invalid
from tests.kubernetes.server.objects import JOBS, Object, amount
from tests.kubernetes.server.schemas import flaws

_LABEL_VALUE = r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?"
_LABEL_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_GO_TYPES = {"integer": "int32", "boolean": "bool", "number": "float64"}
_STANDARD = ("cpu", "memory", "ephemeral-storage")
_TOO_LONG = "must be no more than 63 bytes"


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
    """What is wrong with an object's name and labels."""
    metadata = object["metadata"]
    name = metadata["name"]
    causes = []
    if not re.fullmatch(_SUBDOMAIN, name) and object["kind"] not in ("Role", "RoleBinding", "ClusterRole"):
        causes.append(
            Cause.invalid(
                "metadata.name",
                f'"{name}"',
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
                "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
                f"'{_SUBDOMAIN}')",
            )
        )
    return causes + list(_label_causes(metadata.get("labels") or {}, "metadata.labels"))


def _label_causes(labels: Object, path: str) -> Iterator[Cause]:
    for key, value in labels.items():
        if not re.fullmatch(_LABEL_NAME, key.rpartition("/")[2]):
            yield Cause.invalid(
                path,
                f'"{key}"',
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
                "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
                f"'{_LABEL_NAME}')",
            )
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
    causes = []
    indexed = spec.get("completionMode") == "Indexed"
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
        causes += _policy_causes(spec["podFailurePolicy"].get("rules", []))
    return causes


def _policy_causes(rules: list[Object]) -> Iterator[Cause]:
    for index, rule in enumerate(rules):
        if "onExitCodes" not in rule:
            continue
        path, values = f"spec.podFailurePolicy.rules[{index}].onExitCodes.values", rule["onExitCodes"].get("values", [])
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
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            causes += _container_causes(container, f"{path}.{field}[{index}]", volumes)
    return causes


def _container_causes(container: Object, path: str, volumes: set[str]) -> Iterator[Cause]:
    if not container.get("image"):
        yield Cause.required(f"{path}.image")
    policy = container.get("imagePullPolicy", "Always")
    if policy not in ("Always", "IfNotPresent", "Never"):
        yield Cause.unsupported(f"{path}.imagePullPolicy", policy, ["Always", "IfNotPresent", "Never"])
    for index, variable in enumerate(container.get("env") or []):
        if "=" in variable["name"] or not re.fullmatch(r"[ -~]+", variable["name"]):
            why = "a valid environment variable name must consist only of printable ASCII characters other than '='"
            yield Cause.invalid(f"{path}.env[{index}].name", f'"{variable["name"]}"', why)
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in volumes:
            yield Cause.not_found(f"{path}.volumeMounts[{index}].name", mount["name"])
    yield from _resource_causes(container.get("resources") or {}, f"{path}.resources")


def _resource_causes(resources: Object, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for word, quantities in (("limits", limits), ("requests", requests)):
        for name, quantity in quantities.items():
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
        elif name not in limits and _extended(name):
            yield Cause.required(f"{path}.limits", "Limit must be set for non overcommitable resources")


def _extended(name: str) -> bool:
    return name not in _STANDARD and not name.startswith("hugepages-")


def _canonical(quantity: str | float) -> str:
    value = amount(quantity) * 1000
    return f"{int(value)}m" if value == Fraction(int(value)) else str(quantity)


def check_job_update(before: Object, after: Object) -> None:
    """Refuse a change of what cannot be changed in a Job.

    Raises:
        Refused: 422.
    """
    old, new = before["spec"], after["spec"]
    fixed = ["selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex"]
    if not old.get("suspend") or before.get("status", {}).get("startTime"):
        fixed.insert(0, "template")
    if old.get("completionMode") != "Indexed":
        fixed.append("completions")
    causes = [
        Cause.invalid(f"spec.{name}", "...", "field is immutable") for name in fixed if old.get(name) != new.get(name)
    ]
    if causes:
        raise invalid(JOBS.kind_name, before["metadata"]["name"], causes, group=JOBS.group)
