"""The HTTP side of the API server: paths, verbs, patches, lists, and the subresources of pods."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from attrs import define, evolve, field, frozen
from tests.kubernetes.server.access import ANONYMOUS, Access, Attempt, User
from tests.kubernetes.server.admission import Admission
from tests.kubernetes.server.deletion import Deletion, disrupted
from tests.kubernetes.server.executions import Executions
from tests.kubernetes.server.extensions import EXTENSIONS, JOB_SETS, set_flaw
from tests.kubernetes.server.failures import (
    Refused,
    already_exists,
    bad_request,
    changed_meanwhile,
    invalid,
    no_such_resource,
    not_allowed,
    not_found,
)
from tests.kubernetes.server.faults import Faults, server_error, too_many_requests
from tests.kubernetes.server.kinds import check_base64, kind_causes
from tests.kubernetes.server.kubelet import Kubelet
from tests.kubernetes.server.logs import LogRequest
from tests.kubernetes.server.objects import (
    CLAIMS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    RESOURCES,
    SERVICES,
    Object,
    Resource,
    copied,
)
from tests.kubernetes.server.schemas import flaws
from tests.kubernetes.server.selectors import check_fields, selection
from tests.kubernetes.server.store import key_of
from tests.kubernetes.server.updates import check_update, patched
from tests.kubernetes.server.validation import check_encoding, count_causes, metadata_causes
from tests.kubernetes.server.watching import Watches, WatchRequest
from tests.kubernetes.server.world import World

LARGEST = 3 * 1024 * 1024
"""Bytes of a request's body that the server takes."""
WITH_STATUS = (PODS, JOBS, NODES, NAMESPACES, SERVICES, CLAIMS, QUOTAS, *EXTENSIONS)
"""Kinds whose status is written by itself."""
PRESERVED = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.26.6",
    "compiler": "gc",
    "platform": "linux/amd64",
}


@frozen
class Request:
    """A request for an object or a collection."""

    http: web.Request
    user: User
    resource: Resource
    namespace: str
    name: str
    subresource: str

    @property
    def dry(self) -> bool:
        """Whether nothing may be stored."""
        return "All" in self.http.query.getall("dryRun", [])

    def attempt(self, verb: str) -> Attempt:
        """What is to be allowed."""
        return Attempt(verb, self.resource, self.namespace, self.name, self.subresource)

    async def body(self) -> Object:
        """The body, as JSON.

        Raises:
            Refused: It is none.
        """
        text = await self.http.text()
        if not text.strip() and self.http.method == "DELETE":
            return {}
        try:
            body = json.loads(text)
        except ValueError as error:
            raise bad_request(
                f"the object provided is unrecognized (must be of type {self.resource.kind}): couldn't get "
                f"version/kind; json parse error: {error} ({text[:40]})"
            ) from None
        if not isinstance(body, dict):
            raise bad_request(f"the object provided is unrecognized (must be of type {self.resource.kind})")
        return body


@define(eq=False)
class Api:
    """Answers requests."""

    world: World
    access: Access
    admission: Admission
    deletion: Deletion
    kubelet: Kubelet
    watches: Watches
    faults: Faults
    counts: dict[str, int] = field(factory=dict)
    """How many requests there were, by verb and resource, as in "create jobs"."""
    executions: Executions = field(factory=Executions)
    installed: set[str] = field(factory=set)
    """Groups of `extensions` that this cluster has."""

    def application(self) -> web.Application:
        """The application to serve."""
        application = web.Application(client_max_size=64 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._answer)
        return application

    async def _answer(self, http: web.Request) -> web.StreamResponse:
        try:
            request = self._parsed(http)
            method = _method_of(http, request)
            await self._suffer(http, method)
            if (http.content_length or 0) > LARGEST:
                message = f"Request entity too large: limit is {LARGEST}"
                raise Refused(413, message, "RequestEntityTooLarge")
            if request is None:
                return await self._other(http)
            return await self._dispatch(request)
        except Refused as refused:
            return _reply(refused.status(), refused.code, dict(refused.headers))

    async def _suffer(self, http: web.Request, method: str) -> None:
        path = http.path
        if fault := self.faults.hit("latency", method, path):
            await asyncio.sleep(fault.seconds)
        if self.faults.hit("reset", method, path) and http.transport is not None:
            http.transport.abort()
            raise asyncio.CancelledError  # nobody is left to be answered
        if fault := self.faults.hit("too-many-requests", method, path):
            raise too_many_requests(fault.seconds)
        if fault := self.faults.hit("server-error", method, path):
            raise server_error(fault.status)

    def _parsed(self, http: web.Request) -> Request | None:
        """The object that the path leads to; None for all other paths."""
        parts = [part for part in http.path.split("/") if part]
        if len(parts) > 2 and parts[0] == "api":
            group, version, rest = "", parts[1], parts[2:]
        elif len(parts) > 3 and parts[0] == "apis":
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        resource = next(
            (
                each
                for each in self._resources()
                if (each.group, each.version, each.plural) == (group, version, rest[0])
            ),
            None,
        )
        if resource is None or len(rest) > 3:
            if group in ("authorization.k8s.io", "authentication.k8s.io"):
                return None
            raise no_such_resource()
        user = self.access.user(http.headers.get("Authorization"))
        name, subresource = [*rest[1:], "", ""][:2]
        if resource.plural == "namespaces" and name:
            namespace = name
        return Request(http, user, resource, namespace, name, subresource)

    def _resources(self) -> list[Resource]:
        return [*RESOURCES, *(each for each in EXTENSIONS if each.group in self.installed)]

    async def _dispatch(self, request: Request) -> web.StreamResponse:
        verb, handle = self._handler(request)
        word = f"{verb} {request.resource.plural}" + (f"/{request.subresource}" if request.subresource else "")
        self.counts[word] = self.counts.get(word, 0) + 1
        self.access.check(request.user, request.attempt(verb))
        return await handle(request)

    def _handler(self, request: Request) -> tuple[str, Callable[[Request], Awaitable[web.StreamResponse]]]:
        method, query = request.http.method, request.http.query
        if request.subresource and request.subresource != "status":
            return self._subresource_handler(request)
        if request.subresource == "status" and request.resource not in WITH_STATUS:
            raise no_such_resource()
        if not request.name:
            if method == "GET" and query.get("watch") in ("true", "1"):
                return "watch", self._watch
            handlers = {"GET": ("list", self._list), "POST": ("create", self._create)}
        else:
            handlers = {"GET": ("get", self._get), "PUT": ("update", self._update), "PATCH": ("patch", self._patch)}
            handlers["DELETE"] = "delete", self._delete
        if method not in handlers:
            raise not_allowed()
        return handlers[method]

    def _subresource_handler(self, request: Request) -> tuple[str, Callable[[Request], Awaitable[web.StreamResponse]]]:
        method, where = request.http.method, (request.resource, request.subresource)
        if where == (PODS, "log") and method == "GET":
            return "get", self._log
        if where == (PODS, "eviction") and method == "POST":
            return "create", self._evict
        if where == (PODS, "exec"):
            return "create", self._execute
        raise no_such_resource()

    def _existing(self, request: Request) -> Object:
        namespace = request.namespace if request.resource.namespaced else ""
        object = self.world.store.get(request.resource, namespace, request.name)
        if object is None:
            raise not_found(request.resource, request.name)
        return object

    async def _get(self, request: Request) -> web.StreamResponse:
        return _reply(self._existing(request))

    async def _list(self, request: Request) -> web.StreamResponse:
        store, query = self.world.store, request.http.query
        check_fields(request.resource, query.get("fieldSelector", ""))
        wanted = selection(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        objects = [each for each in store.all(request.resource, request.namespace or None) if wanted(each)]
        shown = store.version
        if fault := self.faults.hit("stale-list", "GET", request.http.path):
            shown = max(store.version - int(fault.seconds), 1)
            objects = store.as_of(request.resource, objects, shown)
        items, metadata = _page(objects, query.get("limit", ""), query.get("continue", ""), shown)
        return _reply(
            {
                "kind": f"{request.resource.kind}List",
                "apiVersion": request.resource.api_version,
                "metadata": metadata,
                "items": [{key: each[key] for key in each if key not in ("kind", "apiVersion")} for each in items],
            }
        )

    async def _watch(self, request: Request) -> web.StreamResponse:
        query = request.http.query
        check_fields(request.resource, query.get("fieldSelector", ""))
        version = query.get("resourceVersion", "")
        fields = query.get("fieldSelector", "") + (f",metadata.name={request.name}" if request.name else "")
        watch = WatchRequest(
            request.resource,
            request.namespace,
            selection(query.get("labelSelector", ""), fields),
            version,
            query.get("allowWatchBookmarks") in ("true", "1"),
            float(query.get("timeoutSeconds", "1800")),
        )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request.http)
        path = request.http.path
        if fault := self.faults.hit("drop-watch", "WATCH", path):
            asyncio.get_running_loop().call_later(fault.seconds, _abort, request.http)
        try:
            async for line in self.watches.lines(watch):
                await response.write(line)
        except ConnectionResetError:
            _abort(request.http)
        return response

    async def _create(self, request: Request) -> web.StreamResponse:
        resource, body = request.resource, await request.body()
        warnings = self._check_body(request, body)
        if resource is JOB_SETS and (flaw := set_flaw(body)):
            message = f'admission webhook "vjobset.kb.io" denied the request: {flaw}'
            raise Refused(403, message, "Forbidden")
        object, more = self.admission.prepared(resource, request.namespace, body)
        holder = self.world.store.get(resource, *key_of(object))
        if holder is not None:
            ending = bool(holder["metadata"].get("deletionTimestamp"))
            raise already_exists(resource, object["metadata"]["name"], ending=ending)
        if not request.dry:
            object = self.world.store.put(resource, object)
            self.admission.follow_up(resource, object)
        return _reply(object, 201, _warnings(warnings + more))

    def _check_body(self, request: Request, body: Object) -> list[str]:
        resource = request.resource
        if body.get("apiVersion", resource.api_version) != resource.api_version:
            version = str(body["apiVersion"]).rpartition("/")[2]
            if any((each.api_version, each.kind) == (body["apiVersion"], body.get("kind")) for each in RESOURCES):
                raise bad_request(
                    f"the API version in the data ({body['apiVersion']}) does not match the expected API version "
                    f"({resource.api_version})"
                )
            raise bad_request(
                f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}: no kind '
                f'"{resource.kind}" is registered for version "{body["apiVersion"]}" in scheme '
                '"pkg/api/legacyscheme/scheme.go:30"'
            )
        if body.get("metadata", {}).get("namespace", request.namespace) != request.namespace:
            message = "the namespace of the provided object does not match the namespace sent on the request"
            raise bad_request(message)
        if body.get("kind", resource.kind) != resource.kind:
            kind = body["kind"]
            raise bad_request(
                f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: converting '
                f"({resource.version}.{kind}) to ({resource.kind}): unknown conversion"
            )
        check_encoding(body, resource.schema)
        check_base64(resource, body)
        unknown = [f'unknown field "{each.path}"' for each in flaws(resource.schema, body) if each.fault == "unknown"]
        mode = request.http.query.get("fieldValidation", "Warn")
        if unknown and mode == "Strict":
            raise bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"strict decoding error: {', '.join(unknown)}"
            )
        return unknown if mode == "Warn" else []

    async def _update(self, request: Request) -> web.StreamResponse:
        body = await request.body()
        self._check_body(request, body)
        metadata = body.get("metadata") or {}
        if not metadata.get("name"):
            raise bad_request(
                f"the name of the object ({request.name} based on URL) was undeterminable: name must be provided"
            )
        self._check_name(request, metadata["name"])
        before = self._existing(request)
        return self._replace(request, before, body)

    async def _patch(self, request: Request) -> web.StreamResponse:
        content_type = request.http.content_type
        text = await request.http.text()
        before = self.world.store.get(
            request.resource, request.namespace if request.resource.namespaced else "", request.name
        )
        if before is None:
            raise not_found(request.resource, request.name)
        body = patched(before, content_type, text)
        self._check_name(request, body.get("metadata", {}).get("name"))
        self._check_body(request, body)
        return self._replace(request, before, body)

    def _check_name(self, request: Request, name: str | None) -> None:
        if name != request.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({request.name})")

    def _replace(self, request: Request, before: Object, body: Object) -> web.StreamResponse:
        resource, store = request.resource, self.world.store
        version = body.get("metadata", {}).get("resourceVersion")
        if version and version != before["metadata"]["resourceVersion"]:
            raise changed_meanwhile(resource, request.name)
        after = {"kind": resource.kind, "apiVersion": resource.api_version} | copied(body)
        after["metadata"] = {**before["metadata"], **_writable(after.get("metadata", {}))}
        for name in ("labels", "annotations", "finalizers", "ownerReferences"):
            if name not in body.get("metadata", {}):
                after["metadata"].pop(name, None)
        if request.subresource == "status":
            after = {**before, "status": after.get("status", {})}
        elif "status" in before:
            after["status"] = before["status"]
        if request.subresource != "status":
            causes = metadata_causes(after) + kind_causes(resource, after)
            if resource is JOBS:
                causes += count_causes(after["spec"])
            if causes:
                raise invalid(resource.kind_name, request.name, causes, group=resource.group)
            check_update(resource, before, after)
        if resource in (JOBS, PODS) and before.get("spec") != after.get("spec"):
            after["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        if request.dry:
            return _reply(after)
        return _reply(store.put(resource, after))

    async def _delete(self, request: Request) -> web.StreamResponse:
        headers: dict[str, str] = {}
        options = _delete_options(request.http, await request.body())
        if request.resource is JOBS and not options.get("propagationPolicy"):
            headers = _warnings([PRESERVED])
        try:
            object = self._existing(request)
            reply = object if request.dry else self.deletion.delete(request.resource, object, options)
        except Refused as refused:
            raise evolve(refused, headers=headers) from None
        return _reply(reply, 200, headers)

    async def _log(self, request: Request) -> web.StreamResponse:
        pod = self._existing(request)
        wanted = LogRequest.of(request.name, request.http.query, self.world.clock)
        book = self.kubelet.log(pod, wanted)
        if book is None:
            return web.Response(status=204)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request.http)
        path = request.http.path
        if fault := self.faults.hit("drop-watch", "LOG", path):
            asyncio.get_running_loop().call_later(fault.seconds, _abort, request.http)
        with contextlib.suppress(ConnectionResetError):
            async for data in book.stream(wanted):
                await response.write(data)
        return response

    async def _evict(self, request: Request) -> web.StreamResponse:
        body, pod = await request.body(), self._existing(request)
        if body.get("apiVersion", "policy/v1") != "policy/v1" or body.get("kind", "Eviction") != "Eviction":
            text = f'no kind "{body.get("kind")}" is registered for version "{body.get("apiVersion")}"'
            raise bad_request(text)
        if (body.get("metadata") or {}).get("name", request.name) != request.name:
            raise bad_request("name in URL does not match name in Eviction object")
        if not request.dry:
            pod = disrupted(self.world, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
            self.deletion.delete(PODS, pod, body.get("deleteOptions") or {})
        return _reply({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    async def _execute(self, request: Request) -> web.StreamResponse:
        # A websocket begins with a GET, which is allowed by that verb; recent servers ask for both.
        self.access.check(request.user, request.attempt("get"))
        pod = self._existing(request)
        container = self.kubelet.container(pod, request.http.query.get("container", ""))
        return await self.executions.run(request.http, pod, container)

    async def _other(self, http: web.Request) -> web.StreamResponse:
        """Everything that is not about stored objects: discovery, health, reviews."""
        path = http.path.rstrip("/")
        if path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        if path == "/version":
            return _reply(VERSION)
        user = self.access.user(http.headers.get("Authorization"))
        if path.startswith(("/apis/authorization.k8s.io/v1/", "/apis/authentication.k8s.io/v1/")):
            return await self._review(http, user)
        if user == ANONYMOUS:
            message = f'forbidden: User "{user.name}" cannot get path "{http.path}"'
            raise Refused(403, message, "Forbidden", {})
        document = discovery(path, self._resources())
        if document is None:
            raise no_such_resource()
        return _reply(document)

    async def _review(self, http: web.Request, user: User) -> web.StreamResponse:
        word = http.path.rstrip("/").rpartition("/")[2]
        self.counts[f"create {word}"] = self.counts.get(f"create {word}", 0) + 1
        body = await http.json()
        kind, spec = body.get("kind"), body.get("spec", {})
        version = http.path.split("/")[2]
        reply = {"kind": kind, "apiVersion": f"{version}/v1", "metadata": {}, "spec": spec}
        if word == "selfsubjectaccessreviews":
            attributes = spec.get("resourceAttributes", {})
            reason = self._allowed(user, attributes)
            reply["spec"] = {"resourceAttributes": {name: value for name, value in attributes.items() if value}}
            reply["status"] = {"allowed": reason is not None} | ({"reason": reason} if reason else {})
        elif word == "subjectaccessreviews":
            asking = {"verb": "create", "group": "authorization.k8s.io", "resource": word}
            if self._allowed(user, asking) is None:
                raise Refused(403, f'User "{user.name}" cannot create {word}', "Forbidden", {})
            asked = User(spec["user"], tuple(spec.get("groups", ())))
            reply["status"] = {"allowed": self._allowed(asked, spec.get("resourceAttributes", {})) is not None}
        elif word == "selfsubjectrulesreviews":
            rules = self.access.rules(user, spec.get("namespace", "default"))
            reply["status"] = {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}
        elif word == "selfsubjectreviews":
            reply["status"] = {"userInfo": {"username": user.name, "groups": list(user.groups)}}
        else:
            raise no_such_resource()
        return _reply(reply, 201)

    def _allowed(self, user: User, attributes: Object) -> str | None:
        group, plural = attributes.get("group", ""), attributes.get("resource", "")
        known = next((each for each in self._resources() if (each.group, each.plural) == (group, plural)), None)
        resource = known or Resource(group, attributes.get("version", ""), plural, "")
        attempt = Attempt(
            attributes.get("verb", ""),
            resource,
            attributes.get("namespace", ""),
            attributes.get("name", ""),
            attributes.get("subresource", ""),
        )
        return self.access.allowed_by(user, attempt)


def discovery(path: str, resources: list[Resource]) -> Object | None:
    """The documents by which a client finds out what there is."""
    groups = sorted({(each.group, each.version) for each in resources if each.group})
    if path == "/apis":
        listed = [_group(group, version) for group, version in groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    for group, version in groups:
        if path == f"/apis/{group}":
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, version)}
    return None


def _group(group: str, version: str) -> Object:
    entry = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [entry], "preferredVersion": entry}


def _method_of(http: web.Request, request: Request | None) -> str:
    """The method as faults name it."""
    if request is not None and http.method == "GET":
        if http.query.get("watch") in ("true", "1"):
            return "WATCH"
        if request.subresource == "log":
            return "LOG"
    return http.method


def _abort(http: web.Request) -> None:
    if http.transport is not None:
        http.transport.abort()


def _reply(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    text = json.dumps(body, separators=(",", ":"))
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def _warnings(texts: list[str]) -> dict[str, str]:
    quoted = [f'299 - "{text.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"' for text in texts]
    return {"Warning": ", ".join(quoted)} if quoted else {}


def _writable(metadata: Object) -> Object:
    """The part of an object's metadata that a client may change."""
    return {
        name: metadata[name] for name in ("labels", "annotations", "finalizers", "ownerReferences") if name in metadata
    }


def _delete_options(http: web.Request, body: Object) -> Object:
    options = dict(body)
    if "propagationPolicy" in http.query:
        options["propagationPolicy"] = http.query["propagationPolicy"]
    if "gracePeriodSeconds" in http.query:
        text = http.query["gracePeriodSeconds"]
        if not text.lstrip("-").isdecimal():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        options["gracePeriodSeconds"] = int(text)
    return options


def _page(objects: list[Object], limit: str, token: str, version: int) -> tuple[list[Object], Object]:
    """One page of a list, and the list's metadata."""
    start = 0
    if token:
        place = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        start = next((i for i, each in enumerate(objects) if list(key_of(each)) > place["start"]), len(objects))
    page = objects[start:][: int(limit) if limit else None]
    metadata: Object = {"resourceVersion": str(version)}
    left = len(objects) - start - len(page)
    if left and page:
        metadata["continue"] = _token({"v": "meta.k8s.io/v1", "rv": version, "start": list(key_of(page[-1]))})
        metadata["remainingItemCount"] = left
    return page, metadata


def _token(place: Object) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
