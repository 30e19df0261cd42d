"""The keys pages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from quotas.models import ApiKey, LimitRow
from quotas.services import keys
from quotas.snapshots import keyformat

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]

FORM = {"name": "notebook", "service_class": "interactive", "days": "90"}
XSS = "<script>alert(1)</script>"


def secret_in(page: str) -> str:
    found = re.search(keyformat.PATTERN, page)
    assert found
    return found[0]


def test_a_new_key_is_shown_once_and_stored_as_a_hash(alice: Any, as_user: Any) -> None:
    """
    The answer that makes a key holds its secret and is not cached; no later page holds it.
    """
    browser = as_user(alice)
    answer = browser.post("/keys/new/", FORM)
    secret = secret_in(answer.content.decode())

    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    assert ApiKey.objects.get().digest == keyformat.digest(secret)
    assert secret not in browser.get("/keys/").content.decode()
    assert secret not in str(dict(browser.session))


def test_the_snippets_hold_address_key_and_a_model_that_is_up(
    alice: Any, as_user: Any, settings: Any
) -> None:
    """
    What is shown works when pasted: the public address, the new key, a model that answers.
    """
    settings.PUBLIC_URL = "https://gpu.example.org"
    page = as_user(alice).post("/keys/new/", FORM).content.decode()

    assert "https://gpu.example.org/v1/chat/completions" in page
    assert page.count(secret_in(page)) >= 5
    assert "Qwen2.5-14B" in page


@pytest.mark.parametrize(
    "change", [{"name": ""}, {"service_class": "admin"}, {"days": "9999"}, {"in_flight": "99"}]
)
def test_a_wrong_form_makes_no_key(alice: Any, as_user: Any, change: dict[str, str]) -> None:
    """
    A refused form says what is wrong and leaves nothing behind.
    """
    answer = as_user(alice).post("/keys/new/", FORM | change)

    assert answer.status_code == 400
    assert not ApiKey.objects.exists()


def test_two_live_keys_cannot_share_a_name(alice: Any, as_user: Any) -> None:
    """
    A name that is taken is refused beside the field; a reload therefore makes no second key.
    """
    browser = as_user(alice)
    browser.post("/keys/new/", FORM)
    answer = browser.post("/keys/new/", FORM)

    assert answer.status_code == 400
    assert "already have a key" in answer.content.decode()
    assert ApiKey.objects.count() == 1


def test_an_owner_may_narrow_a_key_and_never_widen_it(alice: Any, as_user: Any) -> None:
    """
    The own cap offered is below the owner's limit; a larger one is refused by the form.
    """
    as_user(alice).post("/keys/new/", FORM | {"in_flight": "1"})

    assert LimitRow.objects.get(key__name="notebook", name="in_flight").value == 1
    assert (
        as_user(alice).post("/keys/new/", FORM | {"name": "x", "in_flight": "3"}).status_code == 400
    )


def test_rotation_shows_the_new_secret_and_keeps_the_key(alice: Any, as_user: Any) -> None:
    """
    Rotating gives a new secret under the same id; the old one works for the chosen overlap.
    """
    issued = keys.issue(owner=alice, name="notebook", service_class="interactive")
    page = as_user(alice).post(f"/keys/{issued.key.public_id}/rotate/", {"overlap": "1"})
    secret = secret_in(page.content.decode())

    assert secret != issued.secret
    assert page["Cache-Control"] == "no-store"
    assert ApiKey.objects.get().digest == keyformat.digest(secret)
    assert issued.key.old_secrets.count() == 1


def test_revoking_asks_first_and_names_the_effect(alice: Any, as_user: Any) -> None:
    """
    The question names key and effect and changes nothing; the answer ends the key.
    """
    key = keys.issue(owner=alice, name="label-corpus", service_class="batch").key
    browser = as_user(alice)
    question = browser.get(f"/keys/{key.public_id}/revoke/").content.decode()

    assert "Revoke label-corpus?" in question
    assert "0 requests run" in question
    assert ApiKey.objects.get().revoked_at is None

    browser.post(f"/keys/{key.public_id}/revoke/")
    assert ApiKey.objects.get().revoked_at is not None


def test_disable_and_enable(alice: Any, as_user: Any) -> None:
    """
    A disabled key is stopped and can work again; its secret stays.
    """
    key = keys.issue(owner=alice, name="notebook", service_class="interactive").key
    browser = as_user(alice)

    browser.post(f"/keys/{key.public_id}/switch/", {"to": "disabled"})
    assert ApiKey.objects.get().disabled_at is not None
    browser.post(f"/keys/{key.public_id}/switch/", {"to": "enabled"})
    assert ApiKey.objects.get().disabled_at is None


@pytest.mark.parametrize("page", ["", "first-use/", "switch/", "rotate/", "revoke/"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_somebody_elses_key_is_not_there(
    alice: Any, bob: Any, as_user: Any, page: str, method: str
) -> None:
    """
    For a key of another person each address answers 404 (or 405), the same as for no key.
    """
    key = keys.issue(owner=alice, name="notebook", service_class="interactive").key
    browser = as_user(bob)
    foreign = getattr(browser, method)(f"/keys/{key.public_id}/{page}", {"to": "disabled"})
    missing = getattr(browser, method)(f"/keys/key_nothere/{page}", {"to": "disabled"})

    assert foreign.status_code in {404, 405}
    assert foreign.status_code == missing.status_code
    assert ApiKey.objects.filter(revoked_at=None, disabled_at=None).count() == 1


def test_a_form_from_elsewhere_is_refused(alice: Any, as_user: Any) -> None:
    """
    Without our own token a form changes nothing and says why.
    """
    browser = as_user(alice)
    browser.handler.enforce_csrf_checks = True
    answer = browser.post("/keys/new/", FORM)

    assert answer.status_code == 403
    assert "did not come from our own page" in answer.content.decode()
    assert not ApiKey.objects.exists()


def test_key_names_are_shown_literally(alice: Any, as_user: Any) -> None:
    """
    A name that looks like HTML is text on every page that shows it.
    """
    browser = as_user(alice)
    key = keys.issue(owner=alice, name=XSS, service_class="interactive").key

    for page in ("", f"{key.public_id}/", f"{key.public_id}/rotate/", f"{key.public_id}/revoke/"):
        assert XSS not in browser.get(f"/keys/{page}").content.decode()


def test_the_keys_page_asks_as_often_for_many_keys(
    alice: Any, as_user: Any, django_assert_max_num_queries: Any
) -> None:
    """
    Twenty keys cost no more queries than one.
    """
    for number in range(20):
        keys.issue(owner=alice, name=f"key {number}", service_class="batch")
    browser = as_user(alice)

    with django_assert_max_num_queries(15):
        browser.get("/keys/")
