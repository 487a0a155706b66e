"""Annotations, conditions in words, durations."""

import math
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.alerts.model import Alert, Condition, Rule
from server.alerts.rules import Evaluator
from server.alerts.text import NAMES, duration, expand, expression, formatted, parse_duration, problems, unit_of, utc
from tests.alerts.support import frame, rule


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("0", 0.0), ("0s", 0.0), ("5s", 5.0), ("1h30m", 5400.0), ("250ms", 0.25), ("100ms", 0.1), ("1d", 86_400.0),
        ("2w", 1_209_600.0), ("1y1w1d1h1m1s1ms", 32_230_861.001), ("90m", 5400.0), (300, 300.0), (0.5, 0.5), (0, 0.0),
    ],
)  # fmt: skip
def test_parse_duration(written: str | float, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    ["", "5", "5 m", "-5m", "1.5h", "m", "30m1h", "5m5m", "1h ", "٣s", "9" * 40 + "s", "293y", -1, math.nan, math.inf,
     True, None, "5min"],
)  # fmt: skip
def test_no_duration(written: str | float) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (0.25, "250ms"), (5, "5s"), (90, "1m30s"), (300, "5m"), (5400, "1h30m"), (93_600, "1d2h"),
     (14_400, "4h"), (-3, "0s"), (1e-9, "0s")],
)  # fmt: skip
def test_duration(seconds: float, written: str) -> None:
    assert duration(seconds) == written


@given(st.integers(0, 10**12))
def test_a_duration_is_read_as_written(milliseconds: int) -> None:
    assert parse_duration(duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed")
@pytest.mark.parametrize("written", ["1h30m", "30m1h", "5", "0", "1y1w1d1h1m1s1ms", "5m5m", "1.5h"])
def test_prometheus_reads_the_same_durations(written: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(f'groups: [{{name: g, rules: [{{alert: A, expr: "1", for: "{written}"}}]}}]')
    taken = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, check=False).returncode == 0
    try:
        parse_duration(written)
        ours = True
    except ValueError:
        ours = False
    assert ours == taken


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.64, "ratio", "64%"), (0.005, "ratio", "0.5%"), (41.2, "seconds", "41.2 s"), (750.4, "seconds", "12.5 min"),
        (-750, "seconds", "-12.5 min"), (7500, "seconds", "2.08 h"), (1.95, "samples/s", "1.95 samples/s"),
        (12, "", "12"), (12_345.6, "tokens", "12,346 tokens"), (999.7, "", "1,000"), (2e15, "", "2e+15"),
        (None, "ratio", "unknown"), (18.444, "usd/h", "$18.44/h"), (1204.5, "usd", "$1,204.50"),
        (math.inf, "ratio", "+Inf"), (math.nan, "", "NaN"), (0, "versions", "0 versions"),
    ],
)  # fmt: skip
def test_values_for_people(value: float | None, unit: str, shown: str) -> None:
    assert formatted(value, unit) == shown


def test_units_come_from_signals_the_catalogue_and_the_plan() -> None:
    def unit(source: str, name: str) -> str:
        return unit_of(Condition("threshold", source, name))  # type: ignore[arg-type]

    assert unit("signal", "trainer_wait_ratio") == "ratio"
    assert unit("metric", "kv_cache_usage_ratio") == "ratio"
    assert unit("signal", "sandbox_oldest_pending_seconds") == "seconds"
    assert unit("metric", "nobody_knows") == ""


@pytest.mark.parametrize(
    ("one", "written"),
    [
        (rule(on="trainer_wait_ratio", threshold=0.4, for_seconds=300), "trainer_wait_ratio > 0.4 for 5m"),
        (rule(on="staleness_versions", threshold=8, match=["stat=mean"], op=">="),
         'staleness_versions{stat="mean"} >= 8'),
        (rule(kind="absence", match=["target=e0"], for_seconds=60), 'absent(x{target="e0"}) for 1m'),
        (rule(on="p_total", of="increase", window=300, threshold=0), "increase(p_total[5m]) > 0"),
        (rule(also=(rule(on="y", threshold=0.5, op="<").condition,), for_seconds=5), "x > 1 and y < 0.5 for 5s"),
    ],
)  # fmt: skip
def test_expression(one: Rule, written: str) -> None:
    assert expression(one) == written


def alert_of(text: str, **more: object) -> Alert:
    keys = {"on": "trainer_wait_ratio", "threshold": 0.4, "annotations": {"s": text}, "severity": "critical", **more}
    (alert,) = Evaluator([rule("Starved", **keys)], "r").evaluate(  # type: ignore[arg-type]
        frame(0, {"target=e0": 0.64}, "trainer_wait_ratio")
    )
    return alert


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$value of $signal, over $threshold", "64% of trainer_wait_ratio, over 40%"),
        ("$raw_value $unit", "0.64 ratio"),
        ("$alertname $run $severity $class", "Starved r critical tuning"),
        ("since $since for $for", "since 2027-01-15 08:00:00 UTC for 0s"),
        ("$label_target${label_target}s [$label_none]", "e0e0s []"),
        ("$expression", "trainer_wait_ratio > 0.4"),
        ("$$5, $nobody and 100 $ stay; {value} %(value)s too", "$5, $nobody and 100 $ stay; {value} %(value)s too"),
        ("$label_", "$label_"),
    ],
)
def test_annotations(text: str, shown: str) -> None:
    assert alert_of(text).annotations["s"] == shown


def test_every_name_is_known_to_annotations() -> None:
    for name in NAMES:
        assert problems(f"${name} ${{{name}}}") == []
        assert "$" not in alert_of(f"${name}").annotations["s"]


@pytest.mark.parametrize(
    ("text", "count", "word"),
    [
        ("fine $value $label_anything $$", 0, ""),
        ("$valeu", 1, "$valeu is not known"),
        ("100 $ and ${", 2, "must be followed by a name"),
        ("$label_", 1, "is not known"),
        ("${value", 1, "must be followed"),
        ("$a $b", 2, "$a is not known"),
    ],
)
def test_problems(text: str, count: int, word: str) -> None:
    found = problems(text)
    assert len(found) == count
    assert word in "".join(found)


def test_a_label_is_not_read_as_a_template() -> None:
    one = rule(annotations={"s": "$label_target"})
    (alert,) = Evaluator([one], "r").evaluate(frame(0, {"target=$run ${value}": 2}))
    assert alert.annotations["s"] == "$run ${value}"


@settings(max_examples=200)
@given(st.text(), st.one_of(st.none(), st.floats()), st.floats(allow_nan=False))
def test_expansion_never_raises(text: str, value: float | None, at: float) -> None:
    one = rule(annotations={"s": text, "all": " ".join(f"${name}" for name in NAMES)})
    found = expand(one, Alert("A", (), (), "", "firing", at, value=value))
    assert found.keys() == {"s", "all", "summary", "evidence"}
    if not problems(text) and "$" not in text:
        assert found["s"] == text


def test_times_no_calendar_has() -> None:
    assert (utc(0), utc(1e20)) == ("1970-01-01 00:00:00 UTC", "unknown")
