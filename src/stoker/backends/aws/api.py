"""Calls to AWS through botocore, which is imported with the first of them, for every backend on AWS.

botocore alone is enough, and what reads an artifact store on S3 brings it along. Objects are plain mappings, as the API
has them. A call that AWS throttles or does not answer is tried again by botocore (its standard mode), then it is
`Away`; a refusal is an `AwsError`.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import shlex
from typing import Any, Callable, Final, Iterator, Mapping, Protocol, Sequence

import attrs

from stoker.backends.base.platforms import Answers, Away
from stoker.core.errors import BackendError, SettingsError, UsageError, nearest
from stoker.core.units import UNSET, WHOLE_RUN, parse_text

_REGION: Final = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+")
PATIENCE: Final = 20.0
"""Seconds for one answer."""
PERSON_WAITS: Final = 10.0
"""The same while a person waits."""
TRIES: Final = 4
"""How often a call is made that is throttled or gets no answer, with growing pauses.
https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html"""
THROTTLED: Final = frozenset(
    {"TooManyRequestsException", "ThrottlingException", "Throttling", "RequestLimitExceeded", "SlowDown"}
)
UNKNOWN: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
"""Codes of credentials that AWS does not take: https://docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html"""
DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnauthorizedException", "403", "Forbidden"}
)
"""Codes by which the services say that a right is missing."""
LOGIN: Final = "log in (`aws sso login`, `aws configure`), or name the profile in the settings: profile='…'"


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "structure": (Mapping,),
    "map": (Mapping,),
    "list": (list, tuple),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
}
"""Botocore's word for a kind of value → Python's classes."""


def complete_region(region: str) -> str:
    """A region as the settings take it."""
    if not _REGION.fullmatch(region.strip().lower()):
        raise SettingsError(f"{region!r} is no region of AWS", fix="write one such as eu-west-1")
    return region.strip().lower()


def parse_region(value: Any) -> Any:
    """`region` of a backend's settings."""
    return value if value is None or value is UNSET else complete_region(str(parse_text(value)))


def usual_region() -> str:
    """The region of the environment, or of the profile that it names in ~/.aws/config."""
    import configparser

    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    # https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
    profile = os.environ.get("AWS_PROFILE", "default")
    parser = configparser.RawConfigParser()
    with contextlib.suppress(configparser.Error):
        parser.read(os.environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config"), encoding="utf-8")
    section = "default" if profile == "default" else f"profile {profile}"
    region = parser.get(section, "region", fallback="")
    if not region:
        raise SettingsError("no region is named", fix="--region eu-west-1, or AWS_DEFAULT_REGION")
    return region


@attrs.frozen(kw_only=True)
class AwsSettings:
    """The account and region of a backend on AWS."""

    region: str | None = attrs.field(default=UNSET, converter=parse_region, metadata=WHOLE_RUN)
    """The region; without it that of the environment or of the profile."""
    profile: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The profile of ~/.aws; without it the environment's."""
    endpoint_url: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The address of the services instead of AWS's own, such as a private gateway."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value


def image_of_settings(kind: type[Any]) -> Callable[[Mapping[str, Any]], str]:
    """Says which image settings of this class name."""
    return lambda options: str(kind(**options).get("image", ""))


def misfit(service: str, operation: str, arguments: Mapping[str, Any]) -> str:
    """What the model of an API says against part of the arguments of an operation, in words: a name that it has not, or
    a value of another kind. Empty where nothing is wrong, and without botocore, which has the models."""
    try:
        from botocore.loaders import Loader
        from botocore.model import ServiceModel
    except ImportError:
        return ""
    model = ServiceModel(Loader().load_service_model(service, "service-2"), service)
    return next(_misfits(arguments, model.operation_model(operation).input_shape, ""), "")


def _misfits(value: Any, shape: Any, place: str) -> Iterator[str]:
    if value is None:
        return
    kinds = _KINDS.get(shape.type_name)
    fits = kinds is None or type(value) in kinds or (not isinstance(value, bool) and isinstance(value, kinds))
    if not fits:
        yield f"{place} is no {shape.type_name}: {value!r}"
    elif shape.type_name == "structure":
        for name, part in value.items():
            path = f"{place}.{name}" if place else str(name)
            if name in shape.members:
                yield from _misfits(part, shape.members[name], path)
            else:
                yield f"there is no {path}{nearest(str(name), shape.members)}"
    elif shape.type_name == "map":
        for name, part in value.items():
            yield from _misfits(part, shape.value, f"{place}.{name}")
    elif shape.type_name == "list":
        for number, part in enumerate(value):
            yield from _misfits(part, shape.member, f"{place}[{number}]")


_AMOUNT: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
"""A number in a text: https://docs.aws.amazon.com/batch/latest/APIReference/API_ResourceRequirement.html"""
_MILLISECONDS: Final = (10**11, 10**14)
"""The times that are counted in milliseconds, from 1973 to the year 5138: a smaller number is one of seconds."""


def amount(value: object) -> float | None:
    """A number of an answer, also one that is text: 4, "2", "0.25"; None for whatever else AWS says or leaves out."""
    if isinstance(value, str):
        return float(value) if _AMOUNT.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 10**15:
        return None
    return float(value)


def whole(value: object) -> int | None:
    """A whole number of an answer; None where there is none."""
    number = amount(value)
    return None if number is None or number % 1 else int(number)


def moment(value: object) -> float | None:
    """Seconds since the epoch of a time in milliseconds; None where there is none, as 0 and a number of seconds are."""
    number = None if isinstance(value, str) else amount(value)
    return number / 1000 if number is not None and _MILLISECONDS[0] <= number < _MILLISECONDS[1] else None


class AwsError(BackendError):
    """A call that AWS refused."""

    def __init__(self, words: str, code: str, message: str, *, fix: str = "") -> None:
        super().__init__(f"AWS refused {words}: {message} ({code})", fix=fix)
        self.code = code
        self.words = message

    @property
    def denied(self) -> bool:
        """Whether a right is missing."""
        return self.code in DENIED


def command_line(settings: AwsSettings) -> str:
    """AWS's command for that account and region, as a shell takes it."""
    words = ["aws"]
    for name in ("profile", "region", "endpoint_url"):
        words += [f"--{name.replace('_', '-')}", settings.get(name)] if settings.get(name) else []
    return shlex.join(words)


class AwsApi(Protocol):
    """Calls AWS. A refusal is a `BackendError` with the service's own code as `code`; silence is `Away`."""

    def call(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """The answer of an operation by its name in Python: `call("batch", "describe_jobs", jobs=[…])`."""


def pages(api: AwsApi, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
    """All entries of a list that comes in pages; services have two words for the next one."""
    token = "NextToken" if service in ("ec2", "sagemaker", "scheduler", "secretsmanager") else "nextToken"
    following: dict[str, Any] = {}
    while True:
        answer = api.call(service, operation, **arguments, **following)
        yield from answer.get(key) or ()
        if not answer.get(token):
            return
        following = {token: answer[token]}


def code_of(error: BackendError) -> str:
    """The service's own code of a refusal; empty where there is none."""
    return str(getattr(error, "code", ""))


def is_denied(error: BackendError) -> bool:
    """Whether a refusal says that a right is missing."""
    return code_of(error) in DENIED


class AwsClient:
    """The services of the account and region that settings name. Made without a call; used by one thread at a time."""

    title: str
    """What answers, in words: "AWS Batch"."""

    def __init__(self, settings: AwsSettings, *, patience: float = PATIENCE) -> None:
        self._settings = settings
        self._patience = patience
        self._session: Any = None
        self._clients: dict[tuple[str, bool], Any] = {}
        self._abandoned = False
        self._known = False
        self.answers = Answers(self.title)
        self.calls: collections.Counter[str] = collections.Counter()
        """How often each operation was asked for, without botocore's own repetitions."""

    # What each service has of its own

    def left(self, run: str) -> Iterator[tuple[str, bool]]:
        """The jobs of a run that went well or are not over: by what each is ended, and whether it runs or waits."""
        raise NotImplementedError

    def end(self, job: str) -> None:
        """End a job; one that is over is fine."""
        raise NotImplementedError

    def end_identified(self, jobs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """End jobs by what a driver recorded; the names of those that were there."""
        raise NotImplementedError

    # Logs

    def log_events(self, group: str, stream: str, token: str = "") -> tuple[list[Mapping[str, Any]], str]:
        """A page of a log stream from its beginning, or behind `token`; and the token of the next. AWS gives the same
        token again at the end of the stream. A stream that is not there has no events."""
        words: dict[str, Any] = {"logGroupName": group, "logStreamName": stream, "startFromHead": True}
        if token:
            words["nextToken"] = token
        try:
            answer = self.call("logs", "get_log_events", **words)
        except AwsError as error:
            if error.code == "ResourceNotFoundException":
                return [], token
            raise
        return answer.get("events") or [], str(answer.get("nextForwardToken") or token)

    # All of AWS

    def call(self, service: str, operation: str, *, once: bool = False, **words: Any) -> Any:
        """Call an operation by botocore's name for it; `once`: never repeated.

        Raises `Away` without an answer, `AwsError` for a refusal, and `UsageError` without botocore.
        """
        if self._abandoned:
            raise Away("the driver leaves")
        with self.answers.question(operation), self._refusals(f"{service} {operation}"):
            self.calls[operation] += 1
            answer = getattr(self._client(service, once=once), operation)(**words)
        self._known = True
        return answer

    def pages(self, service: str, operation: str, field: str, **words: Any) -> Iterator[Mapping[str, Any]]:
        """The rows of all pages of an answer."""
        return pages(self, service, operation, field, **words)

    def abandon(self) -> None:
        """Ask nothing more; called in another thread."""
        self._abandoned = True

    def close(self) -> None:
        """Close connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, service: str, *, once: bool) -> Any:
        key = (service, once)
        if key not in self._clients:
            try:
                import botocore.config
                import botocore.session
            except ImportError as error:
                raise UsageError(
                    f"{self.title} needs botocore, which is not installed", fix='pip install "stoker[aws]"'
                ) from error
            if self._session is None:
                self._session = botocore.session.Session(profile=self._settings.get("profile"))
            config = botocore.config.Config(
                connect_timeout=min(5.0, self._patience),
                read_timeout=self._patience,
                retries={"mode": "standard", "total_max_attempts": 1 if once else TRIES},
                user_agent_extra="stoker",
            )
            self._clients[key] = self._session.create_client(
                service,
                region_name=self._settings.get("region"),
                endpoint_url=self._settings.get("endpoint_url"),
                config=config,
            )
        return self._clients[key]

    @contextlib.contextmanager
    def _refusals(self, words: str) -> Iterator[None]:
        """Turn botocore's exceptions into Stoker's."""
        try:
            yield
        except BackendError:
            raise
        except Exception as error:  # whatever botocore raises; the rest goes on
            if type(error).__module__.partition(".")[0] != "botocore":
                raise
            raise self._translated(words, error) from error

    def _translated(self, words: str, error: Any) -> BackendError | UsageError:
        from botocore import exceptions

        if isinstance(error, exceptions.ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = str(error.response.get("Error", {}).get("Message", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if code in THROTTLED or status >= 500:
                return Away(f"AWS does not take {words} now: {message or code} ({code})")
            if code in UNKNOWN:
                return self._no_credentials(f"AWS does not take the credentials: {message} ({code})")
            fix = f"let this account call {words.replace(' ', ':')}" if code.startswith("AccessDenied") else ""
            return AwsError(words, code, message, fix=fix)
        if isinstance(error, exceptions.NoRegionError):
            return BackendError(
                "no region of AWS is named", fix="name it in the settings (region='…'), or AWS_DEFAULT_REGION"
            )
        if isinstance(error, exceptions.ProfileNotFound):
            return BackendError(str(error), fix="name one of those in ~/.aws/config: profile='…'")
        if isinstance(error, (exceptions.HTTPClientError, exceptions.ConnectionError)):
            return Away(f"AWS does not answer ({words}): {error}")
        if isinstance(error, exceptions.ParamValidationError):
            return AwsError(words, "ParamValidation", str(error))
        # NoCredentialsError, PartialCredentialsError, TokenRetrievalError, SSOTokenLoadError, CredentialRetrievalError
        return self._no_credentials(f"there are no credentials for AWS that work: {error}")

    def _no_credentials(self, text: str) -> BackendError:
        """Before the first answer a person must log in. Later the jobs go on, and are followed again after a login."""
        return Away(f"{text}; {LOGIN}") if self._known else BackendError(text, fix=LOGIN)
