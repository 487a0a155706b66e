"""The grammar of a line of Prometheus' text format, as the regular expressions of its own scrape parser. Pure.

Taken from `model/textparse/promlex.l` and `promparse.go` of Prometheus 2.42 and compared with the program: it refuses a
whole page for one invalid line. Time is linear in the line's length. Stricter in one point: labels need commas.

Not covered: OpenMetrics, whose pages end in `# EOF`, and the quoted names of Prometheus 3.
"""

import re
from math import isinf

from collectors.model import Labels

TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
OPEN_METRICS_TYPES = TYPES | {"unknown", "info", "stateset", "gaugehistogram"}

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"(?:[^"\\]|\\.)*"[ \t]*'
_LABELS = rf"\{{[ \t]*(?:{_LABEL}(?:,[ \t]*{_LABEL})*(?:,[ \t]*)?)?\}}"
_HEAD = re.compile(rf"{_NAME}(?:[ \t]*(?P<labels>\{{)|[ \t]|$)", re.ASCII)
_KEY = re.compile(rf"{_NAME}(?:[ \t]*{_LABELS}[ \t]*|[ \t]+)", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)", re.ASCII)
_TIME = re.compile(r"\d+", re.ASCII)
_META = re.compile(r"#[ \t]+(?:(?P<type>TYPE)|HELP)[ \t]+")
_ABOUT = re.compile(rf"({_NAME})(?:[ \t](.*))?", re.ASCII | re.DOTALL)
LAST_TIME = 2**63 - 1
# Spaces around "=", quoted names and reserved "__" names are left to prometheus_client.
_PLAIN_LABEL = re.compile(r'((?!__)[a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*(?:\\.[^"\\]*)*)"(?:,|$)', re.ASCII)
_ESCAPE = re.compile(r'\\([\\n"])')

# float() strips and accepts more than the format allows: other blanks, digits of other scripts.
ODD = (b"\r", b"\x0b", b"\x0c", b"\x1c", b"\x1d", b"\x1e", b"\x1f")


def odd(body: bytes) -> bool:
    """Returns whether the page may contain numbers that only Python accepts."""
    return not body.isascii() or any(byte in body for byte in ODD)


def number_flaw(text: str) -> str:
    """Why Go's parser refuses a number that float() accepts; "" if it accepts it."""
    plain = text.strip(" \t")
    if plain.lower() == "nan":
        return ""
    if _NUMBER.fullmatch(plain) is None:
        return "its value is not a number"
    if isinf(float(plain)) and plain.lstrip("+-")[0] not in "iI":
        return "its value is out of range"
    return ""


def line_flaw(line: str) -> str:
    """Why a line is not a valid sample; "" if it is. A line that begins with a blank has an invalid name."""
    key = _KEY.match(line)
    if key is None:
        return _key_flaw(line)
    value, *rest = line[key.end() :].replace("\t", " ").split(" ") or [""]
    flaw = number_flaw(value)
    rest = [word for word in rest if word]
    if flaw or not rest:
        return flaw
    if len(rest) > 1 or _TIME.fullmatch(rest[0]) is None or len(rest[0]) > 19 or int(rest[0]) > LAST_TIME:
        return "the text after its value is not a timestamp in whole milliseconds"
    return ""


def _key_flaw(line: str) -> str:
    head = _HEAD.match(line)
    if head is None:
        return "its name is invalid, or is not followed by labels or a value"
    return 'its labels are not name="value" pairs' if head["labels"] else "it has no value"


def meta(line: str, open_metrics: bool) -> tuple[str, str] | None:
    """(name, type) of a TYPE line; None of every other comment.

    Raises:
        ValueError: a TYPE or HELP line that Prometheus refuses, with the reason.
    """
    match = _META.match(line)
    if match is None:
        return None
    about = _ABOUT.fullmatch(line, match.end())
    if about is None and not line[match.end() :].startswith('"'):
        raise ValueError("the name after TYPE or HELP is invalid")
    if not match["type"]:
        return None
    name, kind = about.groups() if about is not None else _quoted(line[match.end() :])
    if kind not in (OPEN_METRICS_TYPES if open_metrics else TYPES):
        raise ValueError("unknown metric type")
    return name, kind


def _quoted(text: str) -> tuple[str, str]:
    """`"dotted.name" gauge`, as in Prometheus 3."""
    name, _, kind = text[1:].partition('" ')
    return name, kind


def stamped(line: str) -> tuple[str, int | None]:
    """The line without its timestamp, and the timestamp. Value and timestamp follow the labels (or the name)."""
    rest = line[line.rfind("}") + 1 :] if "}" in line else line.partition(" ")[2]
    parts = rest.split()
    if len(parts) != 2 or not parts[1].removeprefix("-").isdecimal() or len(parts[1]) > 18:
        return line, None
    return line.rstrip()[: -len(parts[1])].rstrip(), int(parts[1])


def plain_labels(text: str) -> Labels | None:
    """Sorted labels, or None if the text needs prometheus_client's parser."""
    labels: dict[str, str] = {}
    position = count = 0
    while position < len(text):
        match = _PLAIN_LABEL.match(text, position)
        if match is None:
            return None
        labels[match.group(1)] = _unescape(match.group(2))
        position, count = match.end(), count + 1
    # A label given twice is an error; prometheus_client's parser reports it.
    return tuple(sorted(labels.items())) if len(labels) == count else None


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: "\n" if match.group(1) == "n" else match.group(1), text)
