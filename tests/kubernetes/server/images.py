"""Images, which are only names here: which of them cannot be pulled, and in which words that is said."""

from __future__ import annotations

import re

from attrs import define, field, frozen


@frozen
class PullFailure:
    """An image that cannot be pulled."""

    message: str
    reason: str = "ErrImagePull"


WORDS = {
    "not-found": (
        'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": failed to resolve reference '
        '"{image}": {image}: not found'
    ),
    "unauthorized": (
        'failed to pull and unpack image "{image}": failed to resolve reference "{image}": pulling from host {host} '
        "failed with status code [manifests {tag}]: 401 Unauthorized"
    ),
    "unknown-host": (
        'failed to pull and unpack image "{image}": failed to resolve reference "{image}": failed to do request: Head '
        '"https://{host}/v2/{repository}/manifests/{tag}": dial tcp: lookup {host} on 10.96.0.10:53: no such host'
    ),
}
"""What the container runtime says by the kind of failure, as recorded."""


@define(eq=False)
class Images:
    """Which images fail, by the first expression that the name matches."""

    rules: dict[str, str] = field(
        factory=lambda: {
            r".*/missing(:.*)?": "not-found",
            r"private\.example\.com/.*": "unauthorized",
            r"no-such-registry\.example/.*": "unknown-host",
        }
    )
    """Kind of failure by expression; "ok" where an image is there after all."""

    def failure(self, image: str, policy: str) -> PullFailure | None:
        """Why an image is not to be had; None if it is."""
        repository = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
        path = image.partition("/")[2].rpartition("/")[0]
        if repository != repository.lower() or path != path.lower():
            name = "/".join(part for part in (path, repository) if part)
            return PullFailure(
                f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference '
                f"format: repository name ({name}) must be lowercase",
                "InvalidImageName",
            )
        kind = next((kind for rule, kind in self.rules.items() if re.fullmatch(rule, image)), "ok")
        if kind == "ok":
            return None
        if policy == "Never":
            message = f'Container image "{image}" is not present with pull policy of Never'
            return PullFailure(message, "ErrImageNeverPull")
        host, _, rest = image.partition("/")
        name, _, tag = rest.partition(":")
        return PullFailure(WORDS[kind].format(image=image, host=host, repository=name, tag=tag or "latest"))
