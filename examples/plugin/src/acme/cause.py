"""A cause of failures: the tokens of Acme's simulator are spent, and another attempt succeeds when some are back."""

from __future__ import annotations

from stoker.worker.signatures import Signature

TOKENS_SPENT = Signature(
    name="acme-tokens",
    cause="tokens-spent",
    why="every token of Acme's simulator is in use",
    advice="try again later, or order more tokens",
    pattern=r"AcmeError: no token is left",
    retryable="here",
)
