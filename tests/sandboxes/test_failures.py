"""Texts of runtimes and schedulers, as they are met, and the causes they name."""

import pytest

from collectors.sandbox_providers.provider import cause


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("toomanyrequests: You have reached your pull rate limit",), "rate_limit"),
        (("Sandbox creation rate limit (5/s) exceeded",), "rate_limit"),
        (('pods "a" is forbidden: exceeded quota: compute, requested: cpu=2',), "quota"),
        (("0/12 nodes are available: 12 Insufficient memory.",), "capacity"),
        (("OutOfmemory", "Node didn't have enough resource: memory"), "capacity"),
        (("The node was low on resource: ephemeral-storage.",), "capacity"),
        (("write /x: no space left on device",), "capacity"),
        (("OOMKilled",), "oom"),
        (('OCI runtime create failed: exec: "x": executable file not found in $PATH',), "image"),
        (("failed to pull and unpack image: i/o timeout",), "image"),
        (("pull access denied for x, repository does not exist",), "image"),
        (("context deadline exceeded",), "timeout"),
        (("runc create failed: unable to start container process",), "internal"),
        (("failed to mount volume",), "internal"),
        (("", "Error", "OOMKilled"), "oom"),
        (("something new",), "unknown"),
        ((), "unknown"),
    ],
)
def test_causes(texts: tuple[str, ...], expected: str) -> None:
    assert cause(*texts) == expected
