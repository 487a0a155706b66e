"""JSON without its bulk: long strings and long lists of numbers cut out of the bytes before they are parsed.

Records of rollouts are texts, token ids, masks and log-probabilities for the most part, and none of it is read. What
is left parses fifty times faster and makes no object per token. Cutting is exact: a quote inside a JSON string is
always written with a backslash before it, an opening one follows a bracket, a colon, a comma or a blank, and a closing
one is followed by what no opening one that is taken here is.
"""

import hashlib
import re

# Long enough for every id and name that is read, uuids with suffixes too.
KEPT_BYTES = 160

_NUMBERS = re.compile(rb"\[[-+0-9.eE,\struefalsnNI]{64,}+\]")
# Possessive, so that a text is looked at once, and the quote first, which is what is searched for; what begins like
# the end of a string is left alone.
_TEXTS = re.compile(
    rb'"(?<=[\[:,{\s]")(?!\s*+[,:\]}])(?:[^"\\]|\\.){%d,%d}+[^"\\]*+(?:\\.[^"\\]*+)*+"' % (KEPT_BYTES, KEPT_BYTES),
    re.DOTALL,
)


def cut(data: bytes, *, counted: bool = False) -> bytes:
    """The same JSON with ``""`` for every string longer than `KEPT_BYTES` and ``[]`` for every long list of numbers.

    Args:
        counted: as in `numbers`.
    """
    # Lists first: without them little but punctuation lies between two strings.
    return _TEXTS.sub(b'""', numbers(data, counted=counted))


def numbers(data: bytes, *, counted: bool = False) -> bytes:
    """As `cut`, with every text left as it is.

    Args:
        counted: a long list of booleans (a loss mask) becomes ``[n]``, n of them true: see `true_count`.
    """
    return _NUMBERS.sub(_short if counted else b"[]", data)


def true_count(mask: object) -> int | None:
    """How many of a loss mask's entries are true, cut or not; None when it is no mask, or empty."""
    if not isinstance(mask, list) or not mask:
        return None
    if len(mask) == 1 and isinstance(mask[0], int) and not isinstance(mask[0], bool):
        return mask[0]
    return sum(1 for one in mask if one is True)


def _short(found: re.Match[bytes]) -> bytes:
    listed = found[0]
    return b"[%d]" % listed.count(b"true") if listed[1:2] in b"tf" else b"[]"


def hashed(data: bytes) -> bytes:
    """As `cut`, but each long string is a short hash of itself: equal texts are still equal. For use in memory only."""
    return _TEXTS.sub(_hash, _NUMBERS.sub(b"[]", data))


def _hash(text: re.Match[bytes]) -> bytes:
    return b'"#' + hashlib.blake2b(text[0], digest_size=8).hexdigest().encode() + b'"'
