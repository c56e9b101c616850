"""Where a cluster's API server is and how a client proves who it is, read as kubectl reads it.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
import tempfile
import time
import urllib.parse
from typing import Any, Final, Mapping

import attrs

from stoker.backends.kubernetes.objects import seconds
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import parse_object
from stoker.core.errors import Away, BackendError, SettingsError, nearest

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""
ACCOUNT: Final = "STOKER_SERVICE_ACCOUNT"
"""The variable with the folder of the service account that is used whatever the settings say: a detached driver's pod
has the settings of the machine that it was started from, and not its kubeconfig."""
_REREAD: Final = 60.0
"""Seconds after which a file with a token is read again: the kubelet replaces it before the old token ends."""
_EARLY: Final = 30.0
"""Seconds before its end in which a plugin's token is asked for again."""
_PLUGIN: Final = 60.0
"""Seconds for a plugin's answer: some open a connection to a cloud."""
_VERSIONS: Final = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))


UNKNOWN: Final = "UNKNOWN"
"""What a request shows in place of what only a kubeconfig says, where there is none."""


@attrs.frozen(kw_only=True)
class KubernetesContext:
    """One context of a kubeconfig: a cluster, a user and a namespace."""

    context: str
    """Its name; "in-cluster" for the service account of a pod."""
    server: str
    """The URL of the API server."""
    namespace: str
    cluster: Mapping[str, Any]
    """As the kubeconfig has it, with absolute paths."""
    user: Mapping[str, Any]


def context_of(settings: KubernetesSettings, environment: Mapping[str, str]) -> KubernetesContext:
    """The cluster that settings and environment mean; `SettingsError` where they name none that exists.

    A kubeconfig comes before a pod's service account, which is what is left where no kubeconfig exists.
    """
    if environment.get(ACCOUNT):
        return _service_account(settings, environment)
    paths = _kubeconfig_paths(settings, environment)
    documents = [_document(path) for path in paths if os.path.isfile(path)]
    if not documents:
        named = settings.get("kubeconfig") or environment.get("KUBECONFIG")
        if not named and os.path.isfile(f"{SERVICE_ACCOUNT}/token") and environment.get("KUBERNETES_SERVICE_HOST"):
            return _service_account(settings, environment)
        folder = next((path for path in paths if os.path.isdir(path)), "")
        if folder:
            what = f"{folder} is a folder"
        else:
            what = f"{' and '.join(paths)} {'does' if len(paths) == 1 else 'do'} not exist"
        raise SettingsError(
            f"there is no kubeconfig: {what}", fix="name the file in KUBECONFIG or in the stack (kubeconfig = …)"
        )
    merged: dict[str, dict[str, Any]] = {"clusters": {}, "users": {}, "contexts": {}}
    current = ""
    for document in documents:  # the first file that sets a value wins
        current = current or str(document.get("current-context") or "")
        for kind, entries in merged.items():
            for entry in document.get(kind) or ():
                entries.setdefault(str(entry["name"]), entry[kind[:-1]] or {})
    name = settings.get("context") or current
    context = merged["contexts"].get(name)
    if context is None:
        known = ", ".join(sorted(merged["contexts"])) or "none"
        what = f"has no context '{name}'{nearest(name, merged['contexts'])}" if name else "names no current context"
        raise SettingsError(f"the kubeconfig {paths[0]} {what}; its contexts: {known}", fix="set context in the stack")
    cluster = merged["clusters"].get(str(context.get("cluster")))
    user = merged["users"].get(str(context.get("user")), {} if not context.get("user") else None)
    if cluster is None or user is None:
        kind, missing = ("cluster", context.get("cluster")) if cluster is None else ("user", context.get("user"))
        raise SettingsError(f"the context '{name}' of {paths[0]} names the {kind} '{missing}', which is not there")
    if cluster.get("proxy-url"):
        proxy_of(str(cluster["proxy-url"]))
    return KubernetesContext(
        context=name,
        server=str(cluster.get("server") or "http://localhost:8080").rstrip("/"),
        namespace=settings.get("namespace") or str(context.get("namespace") or "default"),
        cluster=cluster,
        user=user,
    )


@attrs.frozen(kw_only=True)
class ApiProxy:
    """The HTTP proxy through which an API server is reached, by CONNECT."""

    host: str
    port: int
    user: str = ""
    password: str = attrs.field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """What proves to the proxy who asks."""
        if not self.user:
            return {}
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {pair}"}


def proxy_of(url: str) -> ApiProxy:
    """The proxy of a kubeconfig's `proxy-url`; `SettingsError` for one of another kind than http."""
    parts = urllib.parse.urlsplit(url)
    try:
        host, port = parts.hostname or "", parts.port or 80
    except ValueError:
        host, port = "", 0
    if parts.scheme != "http" or not host:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        raise SettingsError(
            f"the cluster is behind the proxy {shown} (proxy-url of the kubeconfig), which is no HTTP proxy",
            fix="name one as http://HOST:PORT, or open a tunnel to the API server and name its address as the server",
        )
    unquote = urllib.parse.unquote
    return ApiProxy(host=host, port=port, user=unquote(parts.username or ""), password=unquote(parts.password or ""))


def _kubeconfig_paths(settings: KubernetesSettings, environment: Mapping[str, str]) -> list[str]:
    given = settings.get("kubeconfig")
    if given:
        return [os.path.abspath(os.path.expanduser(given))]
    listed = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    return [os.path.abspath(os.path.expanduser(path)) for path in listed or ["~/.kube/config"]]


def _document(path: str) -> Mapping[str, Any]:
    """A kubeconfig, in whose entries paths are absolute."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file) or {}
        entries = [
            entry[kind[:-1]] or {} for kind in ("clusters", "users", "contexts") for entry in document.get(kind) or ()
        ]
        assert all(isinstance(entry, dict) for entry in entries)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        words = " ".join(str(error).split())  # YAML's own words have several lines
        fix = "`kubectl config view` says whether kubectl reads it; name another in KUBECONFIG or in the stack"
        raise SettingsError(f"the kubeconfig {path} cannot be read: {words}", fix=fix) from None
    except (AttributeError, KeyError, TypeError, AssertionError):
        fix = "name a file with clusters, users and contexts in KUBECONFIG or in the stack (kubeconfig = …)"
        raise SettingsError(f"{path} is not a kubeconfig", fix=fix) from None
    for entry in entries:
        for field in ("certificate-authority", "client-certificate", "client-key", "tokenFile"):
            if entry.get(field):
                entry[field] = os.path.join(os.path.dirname(path), entry[field])
        plugin = entry.get("exec")
        if plugin and os.path.dirname(str(plugin.get("command", ""))):
            plugin["command"] = os.path.join(os.path.dirname(path), plugin["command"])
    return dict(document)


def _service_account(settings: KubernetesSettings, environment: Mapping[str, str]) -> KubernetesContext:
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment.get("KUBERNETES_SERVICE_PORT", "443")
    folder = environment.get(ACCOUNT) or SERVICE_ACCOUNT
    namespace = settings.get("namespace")
    if not namespace:
        with open(f"{folder}/namespace", encoding="utf-8") as file:
            namespace = file.read().strip()
    return KubernetesContext(
        context="in-cluster",
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=namespace,
        cluster={"certificate-authority": f"{folder}/ca.crt"},
        user={"tokenFile": f"{folder}/token"},
    )


class Access:
    """The TLS context and the credentials for one place, renewed when they end."""

    def __init__(self, place: KubernetesContext, environment: Mapping[str, str]) -> None:
        self.place = place
        self._environment = environment
        self._token = ""
        self._renew_at = 0.0
        self._plugin_certificate: tuple[str, str] | None = None
        self._tls: ssl.SSLContext | None = None

    def headers(self) -> dict[str, str]:
        """The header that proves who asks; none where a certificate does."""
        user = self.place.user
        if user.get("username") and user.get("password") and not user.get("token"):
            pair = f"{user['username']}:{user['password']}".encode()
            return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}
        if time.time() >= self._renew_at:
            self.renew()
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    @property
    def renewable(self) -> bool:
        """Whether `renew` may bring other credentials than those that the server refused."""
        return bool(self.place.user.get("tokenFile") or self.place.user.get("exec"))

    def renew(self) -> None:
        """Read the token's file again, or ask the plugin."""
        user = self.place.user
        if user.get("tokenFile"):
            try:
                with open(user["tokenFile"], encoding="utf-8") as file:
                    self._token = file.read().strip()
            except OSError as error:
                raise BackendError(f"the cluster's token cannot be read: {error}") from None
            self._renew_at = time.time() + _REREAD
        elif user.get("token"):
            self._token, self._renew_at = str(user["token"]), float("inf")
        elif user.get("exec"):
            self._ask_plugin(user["exec"])
        else:
            self._renew_at = float("inf")

    def _ask_plugin(self, plugin: Mapping[str, Any]) -> None:
        """https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins"""
        version, command = str(plugin.get("apiVersion", "")), str(plugin.get("command", ""))
        if version not in _VERSIONS:
            raise BackendError(f"the plugin {command} of the kubeconfig speaks {version or 'no version'}, not v1")
        cluster: dict[str, Any] = {"server": self.place.server}
        if self.place.cluster.get("certificate-authority-data"):
            cluster["certificate-authority-data"] = self.place.cluster["certificate-authority-data"]
        info = {"interactive": False, **({"cluster": cluster} if plugin.get("provideClusterInfo") else {})}
        request = {"apiVersion": version, "kind": "ExecCredential", "spec": info}
        variables = {str(one["name"]): str(one["value"]) for one in plugin.get("env") or ()}
        try:
            finished = subprocess.run(
                [command, *(str(word) for word in plugin.get("args") or ())],
                env={**self._environment, **variables, "KUBERNETES_EXEC_INFO": json.dumps(request)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PLUGIN,
                check=False,
                start_new_session=True,  # a Ctrl-C is the driver's
            )
        except FileNotFoundError:
            hint = str(plugin.get("installHint") or "install it, or write another user into the kubeconfig").strip()
            raise BackendError(f"the kubeconfig's plugin {command} is not installed", fix=hint) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Away(f"the kubeconfig's plugin {command} gives no token: {error}") from None
        if finished.returncode:
            last = next((line for line in reversed(finished.stderr.splitlines()) if line.strip()), "")
            raise BackendError(
                f"the kubeconfig's plugin {command} fails with exit code {finished.returncode}: {last[:300]}",
                fix="log in again with the cloud's own command",
            )
        try:
            status = parse_object(finished.stdout)["status"]
            ends = status.get("expirationTimestamp")
            self._token = str(status.get("token") or "")
            if status.get("clientCertificateData"):
                self._plugin_certificate = (status["clientCertificateData"], status["clientKeyData"])
                self._tls = None
            moment = seconds(ends) if ends else float("inf")
            if moment is None:
                raise BackendError(
                    f"the kubeconfig's plugin {command} says of its token that it ends at {ends!r}, which is no time",
                    fix="update it: client.authentication.k8s.io has times such as 2026-11-21T04:53:50Z",
                )
            self._renew_at = moment - _EARLY
        except (SettingsError, KeyError, TypeError, AttributeError, ValueError):
            raise BackendError(f"the kubeconfig's plugin {command} does not print an ExecCredential") from None

    def tls(self) -> ssl.SSLContext | None:
        """What secures connections; None for a server without TLS."""
        if not self.place.server.startswith("https:"):
            return None
        if self.place.user.get("exec") and not self._renew_at:
            self.renew()  # it may give a certificate
        if self._tls is None:
            try:
                self._tls = self._context()
            except (OSError, ValueError) as error:
                raise BackendError(
                    f"the certificates of context '{self.place.context}' cannot be used: {error}"
                ) from None
        return self._tls

    def _context(self) -> ssl.SSLContext:
        cluster, user = self.place.cluster, self.place.user
        data = cluster.get("certificate-authority-data")
        context = ssl.create_default_context(
            cafile=None if data else cluster.get("certificate-authority"),
            cadata=base64.b64decode(data).decode() if data else None,
        )
        # Python 3.13 refuses what kubectl takes: authorities of older installers, which lack extensions of RFC 5280.
        # https://docs.python.org/3/library/ssl.html#ssl.create_default_context
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self._plugin_certificate is not None:
            _load(context, *(text.encode() for text in self._plugin_certificate))
        elif user.get("client-certificate-data") or user.get("client-key-data"):
            certificate, key = (
                base64.b64decode(user[f"{name}-data"]) if user.get(f"{name}-data") else _content(user.get(name))
                for name in ("client-certificate", "client-key")
            )
            _load(context, certificate, key)
        elif user.get("client-certificate"):
            context.load_cert_chain(user["client-certificate"], user.get("client-key"))
        return context

    @property
    def proxy(self) -> ApiProxy | None:
        """The proxy through which the API server is reached; None for none."""
        url = self.place.cluster.get("proxy-url")
        return proxy_of(str(url)) if url else None

    @property
    def server_name(self) -> str:
        """The name that the server's certificate must have; empty for that of its address."""
        return str(self.place.cluster.get("tls-server-name") or "")


def _content(path: Any) -> bytes:
    with open(str(path), "rb") as file:
        return file.read()


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Use a certificate that is in memory; OpenSSL reads it from a file alone."""
    descriptor, path = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
