"""The server's own addresses."""

import socket

import pytest

from server.runtime.serve import addresses

NAME = socket.gethostname()


@pytest.mark.parametrize(
    ("host", "url", "elsewhere"),
    [
        ("127.0.0.1", "http://127.0.0.1:8050", ""),
        ("localhost", "http://localhost:8050", ""),
        ("gpu-node-1", "http://gpu-node-1:8050", ""),
        ("::1", "http://[::1]:8050", ""),
        ("0.0.0.0", "http://127.0.0.1:8050", f"http://{NAME}:8050"),
        ("::", "http://[::1]:8050", f"http://{NAME}:8050"),
    ],
)
def test_an_address_that_is_printed_can_be_opened(host: str, url: str, elsewhere: str) -> None:
    assert addresses(host, 8050) == (url, elsewhere)
