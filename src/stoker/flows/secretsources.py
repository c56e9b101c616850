"""The sources of `@secrets`: what each is called, and the variables that it gives where the step runs.

`env:NAME` and `file:PATH` are Stoker's; Metaflow's are `TYPE.ID`, or a dict with `type`, `id`, `options` and `role`.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from stoker.core.codec import parse_object
from stoker.core.errors import MissingPackage, SettingsError
from stoker.core.values import frozen

_FIX: Final = "write 'env:NAME', 'file:PATH' or 'aws-secrets-manager.NAME'"
_AWS: Final = "aws-secrets-manager"
_INLINE: Final = "inline"
_ELSEWHERE: Final = ("gcp-secret-manager", "az-key-vault")
"""Types of Metaflow's that nothing here reads."""
_DEFAULTS: Final = ("STOKER_DEFAULT_SECRETS_BACKEND_TYPE", "METAFLOW_DEFAULT_SECRETS_BACKEND_TYPE")
"""Variables with the type of a source that names none."""
_RESERVED: Final = ("METAFLOW_", "STOKER_")


@frozen(kw_only=True)
class _Source:
    """A source by Metaflow's words."""

    type: str
    """Empty where METAFLOW_DEFAULT_SECRETS_BACKEND_TYPE says it."""
    id: str
    options: Mapping[str, Any]
    role: str | None = None


def check_secrets(sources: Any) -> None:
    """Refuse what is no source."""
    if isinstance(sources, (str, Mapping)) or not isinstance(sources, Iterable):
        raise SettingsError(f"sources={sources!r} is not a list", fix=_FIX)
    for source in sources:
        if not _own_kind(source):
            _source(source)


def read_secrets(
    sources: Iterable[Any], role: str | None = None, allow_override: bool = False, **others: Any
) -> dict[str, str]:
    """The variables of all sources; an error for one that two of them give, or that is set already."""
    del others
    secrets_by_name: dict[str, str] = {}
    for source in sources:
        for name, value in get_secret(source, role).items():
            if secrets_by_name.get(name, value) != value:
                raise SettingsError(f"two sources of secrets give {name}", fix="remove one of them")
            if not allow_override and not _own_kind(source) and os.environ.get(name, value) != value:
                raise SettingsError(
                    f"a secret gives {name}, which is set to something else already",
                    fix="unset it, or write @secrets(…, allow_override=True)",
                )
            secrets_by_name[name] = value
    return secrets_by_name


def get_secret(source: str | Mapping[str, Any], role: str | None = None) -> dict[str, str]:
    """The variables of one source."""
    kind = _own_kind(source)
    if kind:
        names = str(source).partition(":")[2]
        return _read_file(names) if kind == "file" else _read_environment(names)
    found = _source(source)
    type = found.type or next((os.environ[name] for name in _DEFAULTS if os.environ.get(name)), "")
    if not type:
        raise SettingsError(
            f"the secret '{found.id}' has no type", fix=f"write 'TYPE.{found.id}', or set {_DEFAULTS[0]}"
        )
    _check_type(type)
    if type == _INLINE:
        return _checked(found.id, found.options["env_vars"])
    return _checked(found.id, _read_aws(found, found.role or role))


def _own_kind(source: Any) -> str:
    """ "env" or "file" for a source by Stoker's words."""
    kind, colon, rest = source.partition(":") if isinstance(source, str) else ("", "", "")
    return kind if colon and rest and kind in ("env", "file") else ""


def _source(source: Any) -> _Source:
    if isinstance(source, Mapping):
        words: dict[str, Any] = dict(source)
        found = _Source(
            type=words.get("type", ""),
            id=words.get("id", ""),
            options=words.get("options", {}),
            role=words.get("role"),
        )
        if not isinstance(found.options, Mapping):
            raise SettingsError(f"options={found.options!r} of a source of secrets is no dict", fix="write {…}")
        if found.type == _INLINE and not isinstance(found.options.get("env_vars"), Mapping):
            raise SettingsError("an inline source has options={'env_vars': {…}}", fix=_FIX)
        if found.type != _INLINE and not found.id:
            raise SettingsError(f"{dict(source)!r} has no id", fix="write {'type': TYPE, 'id': NAME}")
    elif isinstance(source, str) and re.fullmatch(r"[^:]+|arn:.*|[^:.]+\.arn:.*", source):
        type, dot, id = source.partition(".")
        found = _Source(type=type if dot else "", id=id if dot else source, options={})
    else:
        raise SettingsError(f"{source!r} is no source of secrets here", fix=_FIX)
    if found.type:
        _check_type(found.type)
    return found


def _check_type(type: str) -> None:
    if type in _ELSEWHERE:
        raise SettingsError(
            f"secrets of {type} are not read here", fix="let what starts the run set a variable, and write 'env:NAME'"
        )
    if type not in (_AWS, _INLINE):
        raise SettingsError(f"'{type}' is no type of secrets here", fix=_FIX)


def _checked(id: str, variables: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in variables.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise SettingsError(f"the secret '{id}' gives {name!r}, which is no variable's name", fix="rename it")
        if not isinstance(value, str):
            raise SettingsError(f"the secret '{id}' gives {name} a {value.__class__.__name__}, not a text")
        if name.startswith(_RESERVED):
            raise SettingsError(f"the secret '{id}' gives {name}, a variable of Stoker's", fix="rename it")
    return dict(variables)


def _read_environment(names: str) -> dict[str, str]:
    missing = [name for name in names.split(",") if name not in os.environ]
    if missing:
        raise SettingsError(f"the secret {missing[0]} is not set where the step runs", fix=f"export {missing[0]}=…")
    return {name: os.environ[name] for name in names.split(",")}


def _read_file(path: str) -> dict[str, str]:
    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the secrets of {path} cannot be read: {error}", fix="name another file") from None
    if text.lstrip().startswith("{"):
        try:
            return {str(name): str(value) for name, value in parse_object(text).items()}
        except SettingsError:
            raise SettingsError(f"{path} is not JSON", fix='write {"NAME": "value"}') from None
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.removeprefix("export ").partition("=") for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip().strip("\"'") for name, equals, value in pairs if equals}


def _read_aws(source: _Source, role: str | None) -> dict[str, str]:
    """A secret of AWS Secrets Manager: a JSON object gives a variable for each of its keys, another text one."""
    try:
        import botocore.exceptions
        import botocore.session
    except ImportError:
        raise MissingPackage("secrets of AWS need botocore", fix="pip install 'stoker[aws]'") from None
    arn = re.match(r"arn:aws[\w-]*:secretsmanager:([^:]+):", source.id)
    region = arn[1] if arn else source.options.get("region") or _variable("AWS_SECRETS_MANAGER_DEFAULT_REGION")
    session = botocore.session.get_session()
    try:
        client = _client(session, region, role or _variable("AWS_SECRETS_MANAGER_DEFAULT_ROLE"))
        answer = client.get_secret_value(SecretId=source.id)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise SettingsError(
            f"the secret '{source.id}' of AWS Secrets Manager cannot be read: {error}",
            fix="check its name, the region (METAFLOW_AWS_SECRETS_MANAGER_DEFAULT_REGION), and who you are there",
        ) from None
    name = source.options.get("env_var_name") or answer["Name"]
    if "SecretString" not in answer:
        return {_variable_name(name): base64.b64encode(answer["SecretBinary"]).decode()}
    if not source.options.get("json", True):
        return {_variable_name(name): answer["SecretString"]}
    try:
        content = parse_object(answer["SecretString"])
    except SettingsError:
        raise SettingsError(
            f"the secret '{source.id}' is no JSON object", fix="write options={'json': False, 'env_var_name': NAME}"
        ) from None
    return {_variable_name(key): str(value) for key, value in content.items()}


def _client(session: Any, region: str | None, role: str | None) -> Any:
    make: Callable[..., Any] = session.create_client
    if role is None:
        return make("secretsmanager", region_name=region)
    answer = make("sts", region_name=region).assume_role(RoleArn=role, RoleSessionName="stoker-secrets")
    keys = answer["Credentials"]
    return make(
        "secretsmanager",
        region_name=region,
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )


def _variable(name: str) -> str | None:
    return os.environ.get(f"STOKER_{name}") or os.environ.get(f"METAFLOW_{name}")


def _variable_name(text: str) -> str:
    return re.sub(r"[-./]", "_", text)
