"""One target, one identity and one name, whatever the list looks like today."""

import pytest

from server.targets.model import DiscoverSettings, Found
from server.targets.naming import TargetNames, digest, usual_name

BY = DiscoverSettings("file_sd", ("a.json",), "engines")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://Node-1:8000/metrics", "http://node-1:8000"),
        ("http://node-1:8000/metrics/", "http://node-1.:8000/"),
        ("http://node-1/metrics", "http://node-1:80/metrics"),
        ("https://node-1/x?a=1", "https://node-1:443/x?a=1"),
        ("http://LocalHost:8000", "http://127.0.0.1:8000/metrics"),
        ("http://[::1]:8000/", "http://localhost.:8000/metrics/"),
        ("http://[::1]", "http://127.0.0.1:80"),
    ],
)
def test_one_page_in_several_spellings(one: str, other: str) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    "other",
    ["https://n:1/metrics", "http://n:2/metrics", "http://n:1/m", "http://n:1/metrics?a=1", "http://localhost:1"],
)
def test_other_pages_are_others(other: str) -> None:
    assert digest("http://n:1/metrics") != digest(other)


@pytest.mark.parametrize(
    ("found", "labels", "name"),
    [
        (Found("http://n:1/metrics", (), "rollout"), (), "rollout/n:1"),
        (Found("http://n:1/metrics"), (), "engines/n:1"),
        (Found("http://n:1/metrics", (("instance", "pod-3"),), "rollout"), (), "rollout/pod-3"),
        (Found("http://n:1/metrics", (("pod", "p"), ("zone", "z")), "j"), ("zone", "pod"), "z/p"),
        (Found("http://n:1/metrics", (("pod", "p"),), "j"), ("zone", "pod"), "p"),
        (Found("http://n:1/metrics", (), "j"), ("zone",), "j/n:1"),
        (Found("http://n:1/metrics", (("instance", "a\nb"),), "j"), (), "j/a?b"),
        (Found("http://u:secret@n:1/metrics", (), "j"), (), "j/n:1"),
    ],
)
def test_job_and_instance_are_the_name(found: Found, labels: tuple[str, ...], name: str) -> None:
    assert usual_name(found, DiscoverSettings("file_sd", ("a",), "engines", labels_as_name=labels)) == name


def test_a_name_is_given_once_and_kept() -> None:
    names = TargetNames({"b" * 12: "old"}, taken={"mine"}.__contains__)
    assert names.name("a" * 12, "x", {}) == "x"
    # Another page of that name, while the first is there; and when it is not, the second keeps what it got.
    assert names.name("c" * 12, "x", {"x": "a" * 12}) == "x-cccccc"
    assert names.name("c" * 12, "x", {}) == "x-cccccc"
    assert names.name("b" * 12, "x", {}) == "old", "as before our restart"
    assert names.name("d" * 12, "mine", {}) == "mine-dddddd", "configured by hand"
    # The instance moved: its name is free.
    assert names.name("e" * 12, "x", {}) == "x"
