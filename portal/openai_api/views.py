"""The view every route under /v1/files and /v1/batches is built on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from portal.openai_api import errors
from portal.openai_api.authentication import Caller, KeyAuthentication
from quotas.models import ApiKey, User


class AnswersInJson(BaseContentNegotiation):
    """Ignores `Accept`: the client asks for file content with application/binary."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        """Take the parser of the content type, or the first one."""
        kind = request.content_type.split(";")[0].strip().lower()
        known = list(parsers)
        return next((parser for parser in known if parser.media_type == kind), known[0])

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Take the first renderer, whatever was asked for."""
        first = next(iter(renderers))
        return first, first.media_type


class OpenAIView(APIView):
    """Keys only, JSON only, errors in the envelope, no slash at the end."""

    authentication_classes = [KeyAuthentication]
    permission_classes = [IsAuthenticated]
    parser_classes = [JSONParser]
    renderer_classes = [JSONRenderer]
    content_negotiation_class = AnswersInJson
    schema = None

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """Answer in OpenAI's shape whatever the portal's own API does."""
        return errors.handle

    @property
    def caller(self) -> Caller:
        """Return who asks."""
        user, key = self.request.user, self.request.auth
        if not isinstance(user, User) or not isinstance(key, ApiKey):
            raise errors.Unauthorized("No key given.")
        return Caller(user, key)
