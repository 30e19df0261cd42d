"""A small OpenID Connect provider: discovery, sign-in page, code with PKCE, signed ID tokens.

It is the other side of the protocol, written from the specification and not from our client: a
code is good once, for the address and the challenge it was asked with, and the tokens are signed
by a key of its own that it publishes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.rig.serving import serve

CLIENT_ID, CLIENT_SECRET = "fairway", "a secret of the client"
KEY_ID = "key-1"


@dataclass
class Provider:
    """One institute: its people by name, each with the claims told of them."""

    people: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._codes: dict[str, dict[str, str]] = {}
        self._tokens: dict[str, str] = {}  # access token -> person
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve(self._server)

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self._send(*provider._get(parts.path, dict(parse_qsl(parts.query)), self.headers))

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                form = dict(parse_qsl(raw))
                self._send(*provider._post(urlsplit(self.path).path, form, self.headers))

            def _send(self, status: int, body: str | dict[str, Any], to: str = "") -> None:
                raw = (body if isinstance(body, str) else json.dumps(body)).encode()
                kind = "text/html" if isinstance(body, str) else "application/json"
                self.send_response(status)
                self.send_header("content-type", f"{kind}; charset=utf-8")
                self.send_header("content-length", str(len(raw)))
                if to:
                    self.send_header("location", to)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_args: object) -> None:
                """Stay silent."""

        return Handler

    def _get(self, path: str, query: dict[str, str], headers: Any) -> tuple[Any, ...]:
        if path == "/.well-known/openid-configuration":
            return 200, self._discovery()
        if path == "/jwks":
            public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
            return 200, {"keys": [{**public, "kid": KEY_ID, "use": "sig", "alg": "RS256"}]}
        if path == "/authorize":
            assert query["response_type"] == "code"
            assert query["client_id"] == CLIENT_ID
            hidden = "".join(
                f'<input type="hidden" name="{html.escape(k)}" value="{html.escape(v)}">'
                for k, v in query.items()
            )
            return 200, (
                f'<form method="post" action="/authorize">{hidden}<label>Name <input name="who">'
                "</label><button>Let me in</button></form>"
            )
        if path == "/userinfo":
            who = self._tokens.get(headers.get("authorization", "").removeprefix("Bearer "))
            return (200, {"sub": who, **self.people[who]}) if who else (401, {})
        return 404, {}

    def _post(self, path: str, form: dict[str, str], headers: Any) -> tuple[Any, ...]:
        if path == "/authorize":
            code = secrets.token_urlsafe(16)
            self._codes[code] = form
            back = urlencode({"code": code, "state": form["state"]})
            return 302, "", f"{form['redirect_uri']}?{back}"
        return self._token(form, headers) if path == "/token" else (404, {})

    def _token(self, form: dict[str, str], headers: Any) -> tuple[Any, ...]:
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(challenge).rstrip(b"=").decode()
        good = (
            asked is not None
            and form["redirect_uri"] == asked["redirect_uri"]
            and asked["code_challenge"] == proof
            and _is_client(form, headers)
        )
        if asked is None or not good:
            return 400, {"error": "invalid_grant"}
        token, now = secrets.token_urlsafe(16), int(time.time())
        self._tokens[token] = asked["who"]
        claims = {"iss": self.url, "aud": CLIENT_ID, "sub": asked["who"], "iat": now,
                  "exp": now + 300, "nonce": asked.get("nonce")}  # fmt: skip
        signed = jwt.encode(claims, self._key, "RS256", headers={"kid": KEY_ID})
        return 200, {"access_token": token, "token_type": "Bearer", "id_token": signed}

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "userinfo_endpoint": f"{self.url}/userinfo",
            "jwks_uri": f"{self.url}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }


def _is_client(form: dict[str, str], headers: Any) -> bool:
    basic = headers.get("authorization", "").removeprefix("Basic ")
    told = base64.b64decode(basic).decode() if basic else ""
    given = told or f"{form.get('client_id')}:{form.get('client_secret')}"
    return secrets.compare_digest(given, f"{CLIENT_ID}:{CLIENT_SECRET}")
