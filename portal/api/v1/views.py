"""The portal for programs: the same services as behind the pages."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ValidationError as Refusal
from django.db.models import Count, F, Q, QuerySet, Sum
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.permissions import AllowAny, IsAdminUser, IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.api.v1 import serializers as shapes
from portal.api.v1.authentication import MayChange
from portal.status import reading, source
from portal.status.views import status_json
from portal.usage import history, series
from quotas import limits as limit_specs
from quotas import reports
from quotas.models import ApiKey, Group, UsageHour, User
from quotas.services import keys, limits
from quotas.services.limits import Holder

MOST_ROWS = 200
FILTER_TEXTS = {
    "key": "Only of this key id.",
    "model": "Only of this model.",
    "class": "interactive or batch.",
    "outcome": f"One of {', '.join(history.OUTCOMES)}.",
}


def refused(error: Refusal) -> ValidationError:
    """Turn a service's refusal into the API's."""
    return ValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages)


class PersonView(APIView):
    """Answers about the one who asks."""

    permission_classes = [IsAuthenticated, MayChange]

    @property
    def person(self) -> User:
        """Return who asks."""
        return cast("User", self.request.user)

    def own_key(self, key_id: str) -> ApiKey:
        """Return the person's own key; anybody else's is not there."""
        return get_object_or_404(ApiKey, public_id=key_id, owner=self.person)

    def asked(self, shape: type[Any], **rest: Any) -> dict[str, Any]:
        """Return the body, checked."""
        body = shape(data=self.request.data, **rest)
        body.is_valid(raise_exception=True)
        return cast("dict[str, Any]", body.validated_data)


class Keys(PersonView):
    """The person's keys."""

    @extend_schema(responses=shapes.KeySerializer(many=True), operation_id="keys_list")
    def get(self, request: Request) -> Response:
        """List the keys, newest first, revoked ones too."""
        return Response(shapes.KeySerializer(self.person.keys.all(), many=True).data)

    @extend_schema(request=shapes.NewKeySerializer, responses={201: shapes.IssuedKeySerializer})
    def post(self, request: Request) -> Response:
        """Make a key; its secret is in this answer and nowhere else."""
        wanted = self.asked(shapes.NewKeySerializer)
        days = min(wanted["days"], settings.KEY_LONGEST_DAYS)
        if wanted["may_manage"] and isinstance(request.auth, ApiKey):
            raise PermissionDenied("A key that may manage is made in the browser, not by a key.")
        return _secret(
            lambda: keys.issue(
                owner=self.person,
                name=wanted["name"],
                service_class=wanted["service_class"],
                lifetime=shapes.lifetime(days),
                may_manage=wanted["may_manage"],
                most=settings.KEYS_PER_PERSON,
            ),
            status.HTTP_201_CREATED,
        )


def _secret(make: Callable[[], keys.IssuedKey], code: int) -> Response:
    """Return a key with its secret, marked so that nobody keeps the answer."""
    try:
        issued = make()
    except Refusal as error:
        raise refused(error) from None
    body = shapes.KeySerializer(issued.key).data | {"secret": issued.secret}
    return Response(body, status=code, headers={"Cache-Control": "no-store"})


class Key(PersonView):
    """One key of the person."""

    @extend_schema(responses=shapes.KeySerializer)
    def get(self, request: Request, key_id: str) -> Response:
        """Return the key."""
        return Response(shapes.KeySerializer(self.own_key(key_id)).data)

    @extend_schema(request=shapes.ChangeKeySerializer, responses=shapes.KeySerializer)
    def patch(self, request: Request, key_id: str) -> Response:
        """Rename the key, let it live longer, disable or enable it."""
        key, wanted = self.own_key(key_id), self.asked(shapes.ChangeKeySerializer)
        try:
            if "name" in wanted:
                key = keys.rename(key=key, name=wanted["name"])
            if "days" in wanted:
                days = min(wanted["days"], settings.KEY_LONGEST_DAYS)
                key = keys.extend(key=key, lifetime=shapes.lifetime(days))
            if "disabled" in wanted:
                key = (keys.disable if wanted["disabled"] else keys.enable)(key=key)
        except Refusal as error:
            raise refused(error) from None
        return Response(shapes.KeySerializer(key).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, key_id: str) -> Response:
        """Revoke the key, for good."""
        keys.revoke(key=self.own_key(key_id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class RotateKey(PersonView):
    """A new secret for a key."""

    @extend_schema(request=shapes.RotateSerializer, responses=shapes.IssuedKeySerializer)
    def post(self, request: Request, key_id: str) -> Response:
        """Give the key a new secret; the old one works for the overlap."""
        key, wanted = self.own_key(key_id), self.asked(shapes.RotateSerializer)
        overlap = dt.timedelta(hours=wanted["overlap_hours"])
        return _secret(lambda: keys.rotate(key=key, overlap=overlap), status.HTTP_200_OK)


class Usage(PersonView):
    """Sums of usage."""

    @extend_schema(
        parameters=[
            OpenApiParameter("from", dt.date, description="First local day."),
            OpenApiParameter("to", dt.date, description="Last local day."),
            OpenApiParameter("by", str, description="day, model, key, class, batch; by comma."),
        ],
        responses=shapes.UsageSerializer,
    )
    def get(self, request: Request) -> Response:
        """Return the sums of a range of days; the last 30 by default."""
        get = request.query_params
        name = "custom" if "from" in get or "to" in get else "30d"
        try:
            wanted = series.chosen(name, get.get("from", ""), get.get("to", ""), timezone.now())
            by = [part for part in get.get("by", "day").split(",") if part]
            if set(by) - {"day", "model", "key", "class", "batch"}:
                raise ValueError("A report is by day, model, key, class or batch.")
            lines = reports.lines(by, wanted.period, reports.Only(user_id=self.person.pk))
        except ValueError as error:
            raise ValidationError(str(error)) from None
        body = {
            "first": wanted.period.first,
            "last": wanted.period.last,
            "time_zone": settings.TIME_ZONE,
            "lines": lines,
        }
        return Response(shapes.UsageSerializer(body).data)


class Requests(PersonView):
    """Single requests."""

    @extend_schema(
        parameters=[
            *(OpenApiParameter(name, str, description=text) for name, text in FILTER_TEXTS.items()),
            OpenApiParameter("after", str, description="The cursor of the page before."),
            OpenApiParameter("limit", int, description=f"1 to {MOST_ROWS}; 50 by default."),
        ],
        responses=shapes.RequestPageSerializer,
    )
    def get(self, request: Request) -> Response:
        """List requests, newest first."""
        get = request.query_params
        raw = get.get("limit", str(history.PAGE))
        if not raw.isascii() or not raw.isdigit() or not 1 <= int(raw[:9]) <= MOST_ROWS:
            raise ValidationError({"limit": f"Between 1 and {MOST_ROWS}."})
        filters = {name: get.get(name, "").replace("\0", "")[:200] for name in history.FILTERS}
        page = history.page(self.person.pk, filters, get.get("after", "")[:200], int(raw))
        body = {"data": page.rows, "has_more": bool(page.after), "after": page.after}
        return Response(shapes.RequestPageSerializer(body).data)


class Limits(PersonView):
    """What binds the person."""

    @extend_schema(responses=shapes.LimitSerializer(many=True), operation_id="limits_list")
    def get(self, request: Request) -> Response:
        """Return every limit that binds, with the level that set it."""
        found = [
            item
            for name in limit_specs.CLASSES
            for item in limits.effective(user=self.person, service_class=name)
        ]
        return Response([_limit(item) for item in found])


def _limit(item: Any) -> dict[str, Any]:
    return {
        "name": item.spec.name,
        "service_class": item.service_class,
        "per": item.per,
        "value": item.value,
        "names": None if item.names is None else list(item.names),
        "level": item.level,
        "ends_at": item.ends_at,
    }


class Status(APIView):
    """The card now."""

    permission_classes = [AllowAny]

    @extend_schema(responses=shapes.StatusSerializer, auth=[])
    def get(self, request: Request) -> Response:
        """Return what the status page says; null is unknown, with the reason in the sentence."""
        card = reading.read(source.read(), reader_id="", secret=settings.SECRET_KEY)
        return Response(status_json(card))


class AdminLimits(PersonView):
    """Limits, for administrators."""

    permission_classes = [IsAdminUser, MayChange]

    @extend_schema(request=shapes.SetLimitSerializer, responses=shapes.LimitSerializer)
    def put(self, request: Request) -> Response:
        """Set one limit; in force on every gateway within 5 s."""
        wanted = self.asked(shapes.SetLimitSerializer)
        try:
            row = limits.set_limit(
                holder=_holder(wanted),
                **{k: v for k, v in wanted.items() if k not in {"group", "user", "key"}},
            )
        except Refusal as error:
            raise refused(error) from None
        return Response(
            {
                "name": row.name, "service_class": row.service_class, "per": row.per,
                "value": row.value, "names": row.names, "level": row.level, "ends_at": row.ends_at,
            }
        )  # fmt: skip


def _holder(wanted: dict[str, Any]) -> Holder:
    return Holder(
        group=_named(Group.objects.all(), name=wanted.get("group")),
        user=_named(User.objects.all(), username=wanted.get("user")),
        key=_named(ApiKey.objects.select_related("owner"), public_id=wanted.get("key")),
    )


def _named(rows: QuerySet[Any], **name: str | None) -> Any:
    ((field, value),) = name.items()
    if value is None:
        return None
    found = rows.filter(**{field: value.replace("\0", "")}).first()
    if found is None:
        raise ValidationError({field: f"There is no {value[:100]!r}."})
    return found


class AdminPeople(PersonView):
    """People, for administrators."""

    permission_classes = [IsAdminUser, MayChange]

    @extend_schema(
        parameters=[OpenApiParameter("after", int, description="The last id of the page before.")],
        responses=shapes.PersonSerializer(many=True),
        operation_id="admin_people_list",
    )
    def get(self, request: Request) -> Response:
        """List people by id, two hundred at a time."""
        raw = request.query_params.get("after", "0")
        after = int(raw) if raw.isascii() and raw.isdigit() and len(raw) < 18 else 0
        people = list(
            User.objects.filter(pk__gt=after)
            .select_related("group")
            .annotate(live_keys=Count("keys", filter=Q(keys__revoked_at=None)))
            .order_by("pk")[:MOST_ROWS]
        )
        since = timezone.now() - dt.timedelta(days=30)
        sums = dict(
            UsageHour.objects.filter(user_id__in=[p.pk for p in people], hour__gte=since)
            .values_list("user_id")
            .annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
        )
        for person in people:
            person.tokens_30d = sums.get(person.pk, 0)  # type: ignore[attr-defined]
        return Response(shapes.PersonSerializer(people, many=True).data)
