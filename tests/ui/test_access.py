"""Who may use the pages, decided without a server."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.errors import UsageError
from stoker.ui.access import PageAccess, Visit, check, cookie_of, refusal

TOKEN = "a-token-of-32-characters-at-least"
OWN = PageAccess()
SHARED = PageAccess(host="0.0.0.0", token=TOKEN)
PROXIED = PageAccess(host="10.0.0.5", user_header="X-Forwarded-User", proxies=("10.0.0.1",))
HOST = {"host": "127.0.0.1:7480"}


def kind(access: PageAccess, **visit: Any) -> str:
    found = refusal(access, Visit(**visit))
    return "" if found is None else found.kind


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.0.1"])
def test_loopback_needs_no_token(host: str) -> None:
    check(PageAccess(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "node7.example.org", "127.0.0.1.example.org"])
def test_any_other_address_needs_a_token_or_a_proxy(host: str) -> None:
    with pytest.raises(UsageError, match="STK340") as caught:
        check(PageAccess(host=host))
    assert "--token" in caught.value.fix
    check(PageAccess(host=host, token=TOKEN))
    check(PageAccess(host=host, user_header="X-Forwarded-User"))


def test_a_short_token_is_refused() -> None:
    with pytest.raises(UsageError, match="STK341"):
        check(PageAccess(host="0.0.0.0", token="secret"))


@pytest.mark.parametrize("host", ["127.0.0.1:7480", "localhost:7480", "[::1]:7480", "localhost"])
def test_the_owner_is_answered_on_loopback(host: str) -> None:
    assert kind(OWN, headers={"host": host}, of_owner=True) == ""


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7480", "", "127.0.0.1.evil.example", "[::1"])
def test_a_name_that_points_here_is_none_of_the_server(host: str) -> None:
    assert kind(OWN, headers={"host": host.replace("[::1", "x::")}, of_owner=True) == "forbidden"


def test_another_user_of_the_machine_is_refused() -> None:
    found = refusal(OWN, Visit(headers=HOST, of_owner=False))
    assert found is not None
    assert found.message.startswith("STK342")


def test_a_token_is_asked_for_and_taken_in_three_ways() -> None:
    assert kind(SHARED, headers=HOST) == "login"
    assert kind(SHARED, headers=HOST, path="/api/v1/runs") == "login"
    assert kind(SHARED, headers=HOST, path="/login") == ""
    assert kind(SHARED, headers=HOST, path="/login/") == "login"
    assert kind(SHARED, headers=HOST, path="/static/ui.css") == ""
    assert kind(SHARED, headers=HOST, cookie=cookie_of(TOKEN)) == ""
    assert kind(SHARED, headers=HOST, cookie=cookie_of("another-token-of-32-characters")) == "login"
    assert kind(SHARED, headers=HOST, cookie=TOKEN) == "login"
    assert kind(SHARED, headers={**HOST, "authorization": f"Bearer {TOKEN}"}) == ""
    assert kind(SHARED, headers={**HOST, "authorization": f"Bearer {TOKEN}x"}) == "login"
    assert kind(SHARED, headers={**HOST, "authorization": "Bearer"}) == "login"
    assert kind(SHARED, headers={**HOST, "authorization": "Bearer \u00e4"}) == "login"


def test_a_proxy_is_believed_by_its_address_alone() -> None:
    named = {**HOST, "x-forwarded-user": "anna"}
    assert kind(PROXIED, headers=named, peer="10.0.0.1") == ""
    assert kind(PROXIED, headers=named, peer="10.0.0.9") == "forbidden"
    assert kind(PROXIED, headers=HOST, peer="10.0.0.1") == "forbidden"
    assert kind(PROXIED, headers={**HOST, "x-forwarded-user": " "}, peer="10.0.0.1") == "forbidden"


@pytest.mark.parametrize("access", [OWN, SHARED, PROXIED])
def test_what_changes_a_run_comes_from_a_page_of_the_server(access: PageAccess) -> None:
    def post(**headers: str) -> str:
        known = {**HOST, "x-forwarded-user": "anna", **headers}
        visit = {"of_owner": True, "cookie": cookie_of(TOKEN), "peer": "10.0.0.1"}
        return kind(access, method="POST", path="/runs/r/cancel", headers=known, **visit)

    assert post(origin="http://127.0.0.1:7480") == ""
    assert post(origin="https://127.0.0.1:7480") == "", "behind a proxy with TLS"
    assert post(origin="https://127.0.0.1:7480", **{"x-forwarded-proto": "https"}) == ""
    assert post(origin="https://127.0.0.1:7480", **{"x-forwarded-proto": "http"}) == "", "of an inner proxy"
    assert post(origin="http://127.0.0.1:7480", **{"x-forwarded-proto": "HTTPS, http"}) == "forbidden"
    assert post(**{"sec-fetch-site": "same-origin"}) == ""
    assert post() == "forbidden"
    assert post(origin="null") == "forbidden"
    assert post(origin="http://127.0.0.1:7481") == "forbidden"
    assert post(origin="http://evil.example") == "forbidden"
    assert post(origin="http://127.0.0.1:7480.evil.example") == "forbidden"
    assert post(**{"sec-fetch-site": "cross-site"}) == "forbidden"
    assert post(origin="http://evil.example", **{"sec-fetch-site": "same-origin"}) == "forbidden"


def test_a_program_with_the_token_needs_no_origin() -> None:
    headers = {**HOST, "authorization": f"Bearer {TOKEN}"}
    assert kind(SHARED, method="POST", path="/api/v1/runs/r/cancel", headers=headers) == ""
    assert kind(SHARED, method="POST", headers={**headers, "origin": "http://evil.example"}) == "forbidden"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_read_only_changes_nothing(method: str) -> None:
    access = PageAccess(read_only=True)
    headers = {**HOST, "origin": "http://127.0.0.1:7480"}
    found = refusal(access, Visit(method=method, path="/runs/r/cancel", headers=headers, of_owner=True))
    assert found is not None
    assert found.message.startswith("STK344")
    assert kind(access, method="GET", headers=headers, of_owner=True) == ""


def test_a_token_is_in_no_repr() -> None:
    assert TOKEN not in repr(SHARED)
