"""Labels as JSON text and as hashes, for keys of tables."""

import hashlib
import json
from functools import lru_cache

from collectors.model import Labels


def pack_labels(labels: Labels) -> str:
    """Labels as JSON text, in their order; pure ASCII, so that no label can upset a database."""
    return json.dumps(labels, separators=(",", ":"))


@lru_cache(maxsize=1 << 14)
def unpack_labels(text: str) -> Labels:
    """The labels of `pack_labels`. Cached: a page of a run reads the same few hundred texts every second."""
    return tuple((name, value) for name, value in json.loads(text))


def labels_hash(labels: Labels) -> int:
    """64 signed bits, the same in every process (Python's own hash is salted)."""
    return text_hash(pack_labels(labels))


def text_hash(text: str) -> int:
    """64 signed bits that stand for a text in a key."""
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
