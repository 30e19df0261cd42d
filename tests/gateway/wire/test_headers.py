"""Which headers pass, and whose word counts about where a request came from."""

from __future__ import annotations

from gateway.core.headers import client_address, from_engine, to_engine, to_portal

CLIENT = [
    (b"host", b"fairway.example"),
    (b"authorization", b"Bearer secret"),
    (b"cookie", b"session=1"),
    (b"x-api-key", b"secret"),
    (b"x-conversation-id", b"c"),
    (b"x-data-parallel-rank", b"1"),
    (b"x-request-id", b"mine"),
    (b"x-session-id", b"mine"),
    (b"traceparent", b"00-x"),
    (b"accept-encoding", b"gzip"),
]


def test_an_engine_sees_nothing_that_is_not_listed() -> None:
    """Credentials, cookies and what steers an engine stop at the gateway."""
    assert to_engine(CLIENT) == [(b"traceparent", b"00-x")]


def test_a_client_sees_nothing_of_the_engines_connection() -> None:
    """The engine's cookies, ids and hop-by-hop headers stop at the gateway."""
    engine = [(b"content-type", b"a"), (b"set-cookie", b"b"), (b"connection", b"close"),
              (b"server", b"llama.cpp"), (b"x-request-id", b"theirs")]  # fmt: skip

    assert from_engine(engine) == [(b"content-type", b"a")]


def test_the_portal_hears_our_word_about_the_client() -> None:
    """A stranger's forwarded headers are replaced, headers named by Connection are dropped."""
    claimed = [(b"host", b"h"), (b"x-forwarded-for", b"1.2.3.4"), (b"forwarded", b"for=1.2.3.4"),
               (b"x-real-ip", b"1.2.3.4"), (b"connection", b"x-secret, close"),
               (b"x-secret", b"s"), (b"x-forwarded-proto", b"https")]  # fmt: skip

    sent = dict(to_portal(claimed, peer="9.9.9.9", scheme="http", trusted=frozenset()))

    assert sent == {
        b"host": b"h",
        b"x-forwarded-for": b"9.9.9.9",
        b"x-forwarded-proto": b"http",
        b"x-forwarded-host": b"h",
    }


def test_a_trusted_proxys_word_counts_up_to_the_first_stranger() -> None:
    """The chain is read from its right end; what a client wrote further left stays a claim."""
    trusted = frozenset({"10.0.0.1", "10.0.0.2"})
    chain = [(b"x-forwarded-for", b"6.6.6.6, 7.7.7.7, 10.0.0.2"), (b"x-forwarded-proto", b"https")]

    assert client_address(chain, "10.0.0.1", trusted) == "7.7.7.7"
    assert client_address(chain, "8.8.8.8", trusted) == "8.8.8.8"
    sent = dict(to_portal(chain, peer="10.0.0.1", scheme="http", trusted=trusted))
    assert sent[b"x-forwarded-proto"] == b"https"
