"""Refusals in the words of the API server: an exception that carries the `Status` it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen
from tests.kubernetes.server.objects import Object, Resource


@frozen
class Refused(Exception):
    """The API refuses a request."""

    code: int
    message: str
    reason: str = ""
    details: Object | None = None
    headers: Mapping[str, str] = field(factory=dict)
    metadata: Object = field(factory=dict)

    def status(self) -> Object:
        """The body of the reply."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(self.metadata),
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return body | {"code": self.code}


def _details(resource: Resource, name: str, kind: str | None = None) -> Object:
    details: Object = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": kind or resource.plural}


def not_found(resource: Resource, name: str) -> Refused:
    """404 for an object that is not there."""
    return Refused(404, f'{resource.name} "{name}" not found', "NotFound", _details(resource, name))


def no_such_resource() -> Refused:
    """404 for a path that leads nowhere."""
    return Refused(404, "the server could not find the requested resource", "NotFound", {})


def not_allowed() -> Refused:
    """405 for a method that a path does not have."""
    return Refused(405, "the server does not allow this method on the requested resource", "MethodNotAllowed", {})


def already_exists(resource: Resource, name: str, *, ending: bool = False) -> Refused:
    """409 for a name that is taken; `ending` while its holder is being deleted."""
    prefix = "object is being deleted: " if ending else ""
    message = f'{prefix}{resource.name} "{name}" already exists'
    return Refused(409, message, "AlreadyExists", _details(resource, name))


def changed_meanwhile(resource: Resource, name: str) -> Refused:
    """409 for an update whose resourceVersion is not the newest."""
    message = (
        f'Operation cannot be fulfilled on {resource.name} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return Refused(409, message, "Conflict", _details(resource, name))


def another_uid(resource: Resource, name: str, wanted: str, uid: str) -> Refused:
    """409 for a precondition that names an object which is gone."""
    message = (
        f'Operation cannot be fulfilled on {resource.kind_name} "{name}": the UID in the precondition ({wanted}) does '
        f"not match the UID in record ({uid}). The object might have been deleted and then recreated"
    )
    return Refused(409, message, "Conflict", _details(resource, name, resource.kind))


def another_version(resource: Resource, name: str, wanted: str, version: str) -> Refused:
    """409 for a precondition that names an older state."""
    message = (
        f'Operation cannot be fulfilled on {resource.kind_name} "{name}": the ResourceVersion in the precondition '
        f"({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
    )
    return Refused(409, message, "Conflict", _details(resource, name, resource.kind))


def forbidden(resource: Resource, name: str, why: str) -> Refused:
    """403 by an admission controller: quota, pod security, a service account that is not there."""
    return Refused(403, f'{resource.name} "{name}" is forbidden: {why}', "Forbidden", _details(resource, name))


def bad_request(message: str) -> Refused:
    """400."""
    return Refused(400, message, "BadRequest")


@frozen
class Cause:
    """One thing that is wrong with a field."""

    field: str
    reason: str
    """As in `details.causes`: "FieldValueInvalid"."""
    message: str

    @classmethod
    def invalid(cls, field: str, value: str, why: str) -> Cause:
        """A value that is not allowed; `value` as the API prints it."""
        return cls(field, "FieldValueInvalid", f"Invalid value: {value}: {why}")

    @classmethod
    def required(cls, field: str, why: str = "") -> Cause:
        """A value that is missing."""
        return cls(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")

    @classmethod
    def forbidden(cls, field: str, why: str) -> Cause:
        """A value that may not be there, or not be changed."""
        return cls(field, "FieldValueForbidden", f"Forbidden: {why}")

    @classmethod
    def duplicate(cls, field: str, value: str) -> Cause:
        """A value that is there twice."""
        return cls(field, "FieldValueDuplicate", f'Duplicate value: "{value}"')

    @classmethod
    def too_long(cls, field: str, most: int) -> Cause:
        """More than is taken."""
        return cls(field, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")

    @classmethod
    def not_found(cls, field: str, value: str) -> Cause:
        """A name that refers to nothing."""
        return cls(field, "FieldValueNotFound", f'Not found: "{value}"')

    @classmethod
    def unsupported(cls, field: str, value: str, supported: Sequence[str]) -> Cause:
        """A word that is not one of those known."""
        words = ", ".join(f'"{word}"' for word in supported)
        return cls(field, "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {words}')


def invalid(kind_name: str, name: str, causes: Sequence[Cause], *, group: str = "") -> Refused:
    """422 with all that is wrong with an object."""
    lines = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details: Object = {"name": name}
    if group:
        details["group"] = group
    details["kind"] = kind_name.partition(".")[0]
    details["causes"] = [{"reason": each.reason, "message": each.message, "field": each.field} for each in causes]
    return Refused(422, f'{kind_name} "{name}" is invalid: {text}', "Invalid", details)
