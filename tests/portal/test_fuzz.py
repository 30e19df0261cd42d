"""Random requests over the whole OpenAPI schema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

CHECKS = (
    "not_a_server_error,response_schema_conformance,content_type_conformance,"
    "status_code_conformance"
)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("transactional_db", "redis_url", "gateway")
@pytest.mark.parametrize("who", ["alice", "admin"])
def test_no_request_breaks_the_api(who: str, request: Any, live_server: Any, as_user: Any) -> None:
    """
    Some thousand generated requests, as a person and as an administrator, get no 5xx, and every
    answer is one the schema describes.
    """
    browser: Client = as_user(request.getfixturevalue(who))
    browser.get("/keys/")  # sets the CSRF cookie
    session = browser.cookies[settings.SESSION_COOKIE_NAME].value
    token = browser.cookies[settings.CSRF_COOKIE_NAME].value
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run",
        f"{live_server.url}/api/v1/schema", "--phases", "coverage,fuzzing", "-n", "100",
        "-c", CHECKS, "--warnings", "off",
        "-H", f"Cookie: {settings.SESSION_COOKIE_NAME}={session}; "
              f"{settings.CSRF_COOKIE_NAME}={token}",
        "-H", f"X-CSRFToken: {token}",
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout[-4000:]
