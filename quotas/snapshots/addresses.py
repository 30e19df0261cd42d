"""Where an engine may live: the rule for addresses that somebody typed.

A gateway that fetches any address an administrator (or a thief of their session) types is a door
into the machine's network. So: http or https only, no user in the address, no odd spellings of
IP numbers, hosts of the allowed list only, link-local addresses never. Redirects are not followed
by whoever uses the address. Addresses from the environment (ENGINE_URL) are trusted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_HOSTS = ("loopback", "private")
# Metadata services of clouds that sit in ranges which are otherwise private.
NEVER = (ipaddress.ip_network("fd00:ec2::254/128"), ipaddress.ip_network("100.100.100.200/32"))
PRIVATE: tuple[IpNetwork, ...] = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
WORD_LOOPBACK, WORD_PRIVATE, WORD_ANY = "loopback", "private", "any"


class BadAddress(ValueError):
    """The address may not be used; the text says why in plain words."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The setting ENGINE_HOSTS, read: words, names (a leading dot means all below) and networks."""

    words: frozenset[str]
    names: frozenset[str]
    networks: tuple[IpNetwork, ...]

    def allows_name(self, host: str) -> bool:
        """Tell whether the list names this host itself, so that its address does not matter."""
        below = any(name.startswith(".") and host.endswith(name) for name in self.names)
        return host in self.names or below

    def allows_ip(self, ip: IpAddress) -> bool:
        """Tell whether an engine may live at this IP number."""
        if is_never(ip):
            return False
        if WORD_ANY in self.words:
            return True
        if WORD_LOOPBACK in self.words and ip.is_loopback:
            return True
        networks = (*self.networks, *(PRIVATE if WORD_PRIVATE in self.words else ()))
        return any(ip.version == network.version and ip in network for network in networks)


def is_never(ip: IpAddress) -> bool:
    """Tell whether no setting may ever allow this IP number."""
    inner = _inner(ip)
    if inner is not None:
        return True  # an IPv4 number in IPv6 clothes: write it plainly
    special = ip.is_link_local or ip.is_multicast or ip.is_unspecified
    return special or any(ip.version == net.version and ip in net for net in NEVER)


def _inner(ip: IpAddress) -> ipaddress.IPv4Address | None:
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip.ipv4_mapped is not None:
        return ip.ipv4_mapped
    if ip.sixtofour is not None:
        return ip.sixtofour
    if ip in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return None


def allowed_hosts(entries: Iterable[str], trusted_urls: Iterable[str] = ()) -> AllowedHosts:
    """Read ENGINE_HOSTS; the hosts of trusted addresses are added by name."""
    words: set[str] = set()
    names: set[str] = set()
    networks: list[IpNetwork] = []
    for raw in tuple(entries) or DEFAULT_HOSTS:
        entry = raw.strip().lower()
        if entry in (WORD_LOOPBACK, WORD_PRIVATE, WORD_ANY):
            words.add(entry)
        elif entry.startswith("*."):
            names.add(entry[1:])
        elif (network := _network(entry)) is not None:
            networks.append(network)
        elif entry:
            names.add(entry)
    for url in trusted_urls:
        host = urlsplit(url).hostname if url else None
        if host and (network := _network(host)) is not None:
            networks.append(network)
        elif host:
            names.add(host)
    return AllowedHosts(frozenset(words), frozenset(names), tuple(networks))


def _network(entry: str) -> IpNetwork | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def engine_url(url: str, allowed: AllowedHosts) -> str:
    """Return the address in its plain form, or raise `BadAddress`.

    A host name that the list does not name passes here; whoever connects must look it up and ask
    `refused_ip` about every IP number found, each time, because names change.
    """
    if url != url.strip() or any(ord(c) < 33 or c in "\\\u007f" for c in url):
        raise BadAddress("The address holds a blank or a control character.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadAddress("The address cannot be read.") from None
    if parts.scheme not in ("http", "https"):
        raise BadAddress("The address must begin with http:// or https://.")
    if "@" in parts.netloc:
        raise BadAddress("The address must not contain a user name or password.")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise BadAddress("The address must end before any ? or #.")
    host = _host(parts.hostname or "", allowed)
    where = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{where}{path}"


def _host(host: str, allowed: AllowedHosts) -> str:
    if "%" in host:
        raise BadAddress("The address must not name a network interface.")
    try:
        ip: IpAddress | None = ipaddress.ip_address(host)
    except ValueError:
        ip = None
    if ip is not None:
        reason = refused_ip(ip, allowed)
        if reason:
            raise BadAddress(reason)
        return f"[{ip}]" if ip.version == 6 else str(ip)
    labels = host.removesuffix(".").split(".")
    if not all(LABEL.fullmatch(label) for label in labels):
        raise BadAddress("The address names no host that can exist.")
    # Resolvers read 2130706433, 0x7f.1 and 0177.0.0.1 as IP numbers; a person never means them.
    if all(NUMBER.fullmatch(label) for label in labels) or NUMBER.fullmatch(labels[-1]):
        raise BadAddress("The address is an odd spelling of an IP number; write it plainly.")
    if len(host) > 253:
        raise BadAddress("The address names no host that can exist.")
    return host


def refused_ip(ip: IpAddress | str, allowed: AllowedHosts) -> str:
    """Return why an engine may not live at this IP number, or an empty text."""
    number = ipaddress.ip_address(ip) if isinstance(ip, str) else ip
    if is_never(number):
        return "The address is link-local, reserved or a disguised one; engines are never there."
    if not allowed.allows_ip(number):
        return "The address is outside ENGINE_HOSTS."
    return ""


def refused_answers(host: str, ips: Iterable[str], allowed: AllowedHosts) -> str:
    """Return why a host that resolves to these IP numbers may not be used, or an empty text."""
    numbers = [ipaddress.ip_address(ip.partition("%")[0]) for ip in ips]
    if not numbers:
        return "The host name is not known."
    if allowed.allows_name(host):
        bad = any(is_never(number) for number in numbers)
        return "The host name leads to a link-local or reserved address." if bad else ""
    for number in numbers:
        reason = refused_ip(number, allowed)
        if reason:
            return reason
    return ""
