"""Number format of prometheus_client."""


def number(value: float) -> str:
    """Formats a float with Go's exponents from 1e6 up: 1599 -> `1599.0`, 1795246807 -> `1.795246807e+09`."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6 and "e" not in text:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02d}"
    return text
