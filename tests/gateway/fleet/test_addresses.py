"""Addresses of engines that somebody typed."""

from __future__ import annotations

import pytest

from quotas.snapshots.addresses import (
    BadAddress,
    allowed_hosts,
    engine_url,
    refused_answers,
    refused_ip,
)

DEFAULT = allowed_hosts([])


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://10.0.0.5:8000/v1/", "http://10.0.0.5:8000"),
        ("https://gpu1.example.org", "https://gpu1.example.org"),
        ("http://[::1]:9000/base/", "http://[::1]:9000/base"),
        ("http://[fd12::5]", "http://[fd12::5]"),
        ("http://GPU_box:1", "http://gpu_box:1"),
    ],
)
def test_plain_addresses_pass(typed: str, plain: str) -> None:
    """
    Loopback, private numbers and names pass and are kept in their plain form, without /v1.
    """
    assert engine_url(typed, DEFAULT) == plain


@pytest.mark.parametrize(
    "typed",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fd00:ec2::254]/",
        "http://0.0.0.0:80",
        "http://[::]:80",
        "http://8.8.8.8",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0x7f.0.0.1/",
        "http://127.0.0.1./",
        "http://127。0。0。1/",
        "http://①②⑦.0.0.1/",
        "http://user@127.0.0.1/",
        "http://user:secret@127.0.0.1/",
        "http://good.example@169.254.169.254/",
        "http://127.0.0.1\\@evil.example/",
        "http://127.0.0.1/?x=1",
        "http://127.0.0.1/#x",
        "http://127.0.0.1:99999/",
        "http://exa mple/",
        "http://example\n.org/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "//127.0.0.1/",
        "127.0.0.1:8000",
        "http://",
        "http:///x",
        "",
    ],
)
def test_everything_else_is_refused(typed: str) -> None:
    """
    Link-local and public numbers, odd spellings, user names and other schemes never pass.
    """
    with pytest.raises(BadAddress) as refused:
        engine_url(typed, DEFAULT)
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("host", "ips", "allowed", "fine"),
    [
        ("gpu.lab", ["10.1.2.3"], DEFAULT, True),
        ("gpu.lab", ["10.1.2.3", "93.184.216.34"], DEFAULT, False),
        ("gpu.lab", ["169.254.169.254"], DEFAULT, False),
        ("gpu.lab", ["93.184.216.34"], allowed_hosts(["gpu.lab"]), True),
        ("a.gpu.lab", ["93.184.216.34"], allowed_hosts(["*.gpu.lab"]), True),
        ("gpu.lab", ["93.184.216.34"], allowed_hosts(["*.gpu.lab"]), False),
        ("gpu.lab", ["169.254.1.1"], allowed_hosts(["gpu.lab"]), False),
        ("gpu.lab", ["93.184.216.34"], allowed_hosts(["93.184.216.0/24"]), True),
        ("gpu.lab", ["10.0.0.1"], allowed_hosts(["93.184.216.0/24"]), False),
        ("gpu.lab", ["93.184.216.34"], allowed_hosts([], ["http://93.184.216.34:80"]), True),
        ("gpu.lab", ["fe80::1%eth0"], allowed_hosts(["any"]), False),
        ("gpu.lab", [], DEFAULT, False),
    ],
)
def test_a_name_is_judged_by_where_it_leads(host, ips, allowed, fine) -> None:
    """
    Every number a name leads to must be allowed, unless the name itself is; link-local never is.
    """
    assert (refused_answers(host, ips, allowed) == "") is fine


def test_any_still_refuses_link_local() -> None:
    """
    The widest setting opens no door to a cloud's metadata service.
    """
    wide = allowed_hosts(["any"])

    assert refused_ip("93.184.216.34", wide) == ""
    assert refused_ip("169.254.169.254", wide) != ""
