"""Keys: see, create, see once, edit, rotate, disable, revoke."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.keys import snippets, table
from portal.keys.forms import EditForm, KeyForm, RotateForm
from portal.status import source
from portal.status.views import live_answer
from quotas.models import ApiKey, Pool, UsageEvent, User
from quotas.services import keys, limits
from quotas.services.limits import Holder

GET_OR_POST = ["GET", "HEAD", "POST"]


def _person(request: HttpRequest) -> User:
    return cast("User", request.user)  # behind login_required


def _own(request: HttpRequest, public_id: str) -> ApiKey:
    """Return the person's own key; anybody else's is not there."""
    return get_object_or_404(ApiKey.objects.select_related("owner"), public_id=public_id,
                             owner=_person(request))  # fmt: skip


@require_safe
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """Show the keys and the form for another one."""
    return _page(request, KeyForm(cap=_own_cap(_person(request), "interactive")))


def _page(request: HttpRequest, form: KeyForm, status: int = 200) -> HttpResponse:
    rows = table.rows(_person(request), source.read())
    live = [row for row in rows if row.state != "revoked"]
    context = {
        "section": "keys",
        "form": form,
        "rows": live,
        "revoked": [row for row in rows if row.state == "revoked"],
        "most": settings.KEYS_PER_PERSON,
        "caps": {kind: _own_caps(_person(request), kind) for kind in ("interactive", "batch")},
    }
    return render(request, "keys/index.html", context, status=status)


@require_POST
@login_required
def create(request: HttpRequest) -> HttpResponse:
    """Make a key and show its secret once: in this answer, never in an address or session."""
    person = _person(request)
    service_class = request.POST.get("service_class", "")
    cap = _own_cap(person, service_class if service_class == "batch" else "interactive")
    form = KeyForm(request.POST, cap=cap)
    if not form.is_valid():
        return _page(request, form, status=400)
    try:
        issued = keys.issue(
            owner=person,
            name=form.cleaned_data["name"],
            service_class=form.cleaned_data["service_class"],
            lifetime=form.lifetime,
            may_manage=form.cleaned_data["may_manage"],
            most=settings.KEYS_PER_PERSON,
        )
    except ValidationError as error:
        _tell(form, error)
        return _page(request, form, status=400)
    _own_limits(issued.key, form.cleaned_data)
    return _shown_once(request, issued, "created")


def _own_limits(key: ApiKey, wanted: dict[str, Any]) -> None:
    """Set the narrower limits the owner chose for this key."""
    for name, value, names in (
        ("in_flight", wanted["in_flight"], None),
        ("allowed_models", None, [wanted["model"]] if wanted["model"] else None),
    ):
        if value is not None or names is not None:
            limits.set_limit(
                holder=Holder(key=key),
                service_class=key.service_class,
                name=name,
                value=value,
                names=names,
                per="key",
                note="set by the owner",
            )


def _tell(form: Any, error: ValidationError) -> None:
    """Put a service's refusal beside the field it is about."""
    parts = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    for field, texts in parts.items():
        for text in texts:
            form.add_error(field if field in form.fields else None, text)


def _shown_once(request: HttpRequest, issued: keys.IssuedKey, what: str) -> HttpResponse:
    model = model_that_is_up()
    context = {
        "section": "keys",
        "what": what,
        "key": issued.key,
        "secret": issued.secret,
        "model": model,
        "snippets": snippets.for_key(
            base_url=settings.PUBLIC_URL, secret=issued.secret, model=model or "MODEL"
        ),
    }
    response = render(request, "keys/created.html", context)
    response["Cache-Control"] = "no-store"
    response["Referrer-Policy"] = "no-referrer"
    return response


def model_that_is_up() -> str:
    """Return a model that would answer now, else any model of the books, else nothing."""
    live = source.read().live
    if live is not None:
        for engine in live.engines:
            if engine.state in {"up", "busy"}:
                return engine.pool
    return Pool.objects.order_by("name").values_list("name", flat=True).first() or ""


@require_safe
@login_required
def first_use(request: HttpRequest, public_id: str) -> HttpResponse:
    """Return the line that turns green when the gateway has seen the key."""
    key = _own(request, public_id)
    event = UsageEvent.objects.filter(key_id=key.public_id).order_by("arrived_at").first()
    live = source.read().live
    seen = [t.key_id for t in live.running] + [t.key_id for t in live.queued] if live else []
    context = {"key": key, "event": event, "now_count": seen.count(key.public_id)}
    return live_answer(request, "keys/first_use.html", context)


@require_http_methods(GET_OR_POST)
@login_required
def edit(request: HttpRequest, public_id: str) -> HttpResponse:
    """Rename a key, let it live longer, stop it for a while."""
    key = _own(request, public_id)
    form = EditForm(request.POST or None, key=key)
    if request.method == "POST" and form.is_valid():
        try:
            if form.cleaned_data["name"] != key.name:
                keys.rename(key=key, name=form.cleaned_data["name"])
            if form.cleaned_data["days"] is not None:
                keys.extend(key=key, lifetime=dt.timedelta(days=form.cleaned_data["days"]))
        except ValidationError as error:
            _tell(form, error)
        else:
            messages.success(request, _("Saved: %(name)s") % {"name": form.cleaned_data["name"]})
            return redirect("keys")
    context = {"section": "keys", "form": form, "key": key, "state": _state(key)}
    return render(request, "keys/edit.html", context, status=400 if form.errors else 200)


def _state(key: ApiKey) -> str:
    return key.state(dt.datetime.now(dt.UTC))


@require_POST
@login_required
def switch(request: HttpRequest, public_id: str) -> HttpResponse:
    """Disable a key, or enable it again."""
    key = _own(request, public_id)
    try:
        if request.POST.get("to") == "enabled":
            keys.enable(key=key)
            messages.success(request, _("%(name)s works again within 5 s") % {"name": key.name})
        else:
            keys.disable(key=key)
            messages.success(
                request,
                _("%(name)s is refused within 5 s, until you enable it") % {"name": key.name},
            )
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    return redirect("keys")


@require_http_methods(GET_OR_POST)
@login_required
def rotate(request: HttpRequest, public_id: str) -> HttpResponse:
    """Give a key a new secret while the old one still works for a chosen time."""
    key = _own(request, public_id)
    form = RotateForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            issued = keys.rotate(
                key=key,
                overlap=dt.timedelta(hours=form.cleaned_data["overlap"]),
                lifetime=dt.timedelta(days=min(90, settings.KEY_LONGEST_DAYS)),
            )
        except ValidationError as error:
            _tell(form, error)
        else:
            return _shown_once(request, issued, "rotated")
    context = {"section": "keys", "form": form, "key": key}
    return render(request, "keys/rotate.html", context, status=400 if form.errors else 200)


@require_http_methods(GET_OR_POST)
@login_required
def revoke(request: HttpRequest, public_id: str) -> HttpResponse:
    """Ask once, naming the effect; then end the key for good."""
    key = _own(request, public_id)
    if request.method == "POST":
        keys.revoke(key=key)
        messages.success(
            request, _("Revoked %(name)s: refused everywhere within 5 s") % {"name": key.name}
        )
        return redirect("keys")
    row = next(row for row in table.rows(_person(request), source.read()) if row.key.pk == key.pk)
    return render(request, "keys/revoke.html", {"section": "keys", "key": key, "row": row})


def _own_caps(person: User, service_class: str) -> dict[str, int | None]:
    return {
        f"{item.spec.name}_{item.per}": item.value
        for item in limits.effective(user=person, service_class=service_class)
    }


def _own_cap(person: User, service_class: str) -> int:
    """Return the most in flight a key of this person may be given."""
    return _own_caps(person, service_class).get("in_flight_key") or 2
