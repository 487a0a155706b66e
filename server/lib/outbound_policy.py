"""Which addresses Rollscope may send requests to, and which bind addresses are loopback."""

import ipaddress
import socket
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Is this bind address reachable from this machine only?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_target(url: str) -> str | None:
    """Returns why a target's URL is refused, or None. Clouds serve credentials at link-local addresses."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return "is not a URL (host in brackets, or a port that is no number below 65536)"
    if parts.scheme not in ("http", "https") or not host:
        return "must be an http:// or https:// URL with a host"
    address = _address(host)
    if address is None:
        return "is a cloud metadata name" if host == "metadata" or host.startswith("metadata.") else None
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_link_local or mapped.is_multicast or str(mapped) == "fd00:ec2::254":
        return "is a link-local or multicast address (clouds serve metadata there)"
    return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address of a literal in every notation the resolver accepts (2852039166 is 169.254.169.254)."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host)) if host[0].isdigit() else None
    except OSError:
        return None
