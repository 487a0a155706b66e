"""The wire format against Google's own protobuf library, in the environment of the writers."""

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import wandb
from tests.support_writers import live_writer, run_writer

# Messages of a type that is made here, field for field; the numbers and types are what the test is about.
ENCODE = """
import base64, json, sys
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3")
message = file.message_type.add(name="T")
F = descriptor_pb2.FieldDescriptorProto
for name, number, kind in [("i", 1, F.TYPE_INT64), ("z", 2, F.TYPE_SINT64), ("d", 3, F.TYPE_DOUBLE),
                           ("f", 4, F.TYPE_FLOAT), ("s", 5, F.TYPE_STRING), ("b", 536870911, F.TYPE_BYTES)]:
    message.field.add(name=name, number=number, type=kind, label=F.LABEL_OPTIONAL)
message.field.add(name="p", number=20, type=F.TYPE_INT64, label=F.LABEL_REPEATED)
file.message_type.add(name="U")  # knows no field, so that only the format counts
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
T = message_factory.GetMessageClass(pool.FindMessageTypeByName("T"))
U = message_factory.GetMessageClass(pool.FindMessageTypeByName("U"))
for line in sys.stdin:
    given = json.loads(line)
    if "decode" in given:
        try:
            U.FromString(base64.b64decode(given["decode"]))
            print("yes", flush=True)
        except Exception:
            print("no", flush=True)
        continue
    made = T(**{**given, "b": base64.b64decode(given["b"])})
    print(base64.b64encode(made.SerializeToString()).decode(), flush=True)
"""

whole = st.integers(-(2**63), 2**63 - 1)
messages = st.fixed_dictionaries(
    {
        "i": whole,
        "z": whole,
        "d": st.floats(allow_nan=False),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
        "s": st.text(st.characters(exclude_categories=("Cs",)), max_size=300),
        "b": st.binary(max_size=300).map(lambda data: base64.b64encode(data).decode()),
        "p": st.lists(whole, max_size=5),
    }
)


@pytest.fixture(scope="module")
def google():
    with live_writer(ENCODE) as writer:
        yield writer


def decoded(data: bytes) -> dict[str, object]:
    """What we read; a field that is zero or empty is not written (proto3)."""
    found: dict[str, object] = {"i": 0, "z": 0, "d": 0.0, "f": 0.0, "s": "", "b": "", "p": []}
    for number, kind, value, content in wandb.fields(data):
        if number == 1:
            found["i"] = wandb.signed(value)
        elif number == 2:
            found["z"] = wandb.zigzag(value)
        elif number == 3:
            found["d"] = wandb.double(content)
        elif number == 4:
            found["f"] = wandb.single(content)
        elif number == 5:
            found["s"] = wandb.text_field(content)
        elif number == 20:
            assert kind == wandb.BYTES
            found["p"] = [wandb.signed(one) for one in wandb.varints(content)]
        else:
            assert number == 536870911
            found["b"] = base64.b64encode(content).decode()
    return found


@given(message=messages)
def test_what_google_encodes_is_read_back(google, message: dict[str, object]) -> None:
    assert decoded(base64.b64decode(google.say(json.dumps(message)))) == message


# Bytes as they come rarely make two fields; small tags and lengths often do.
nearly = st.one_of(st.binary(max_size=40), st.lists(st.integers(0, 48), max_size=40).map(bytes))


STRICTER = ("wire type 3", "wire type 4", "field number 0")


@given(data=nearly)
def test_garbage_is_refused_where_google_refuses_it(google, data: bytes) -> None:
    """But for what we alone refuse: groups, and field number 0, which the format forbids and upb lets pass."""
    theirs = google.say(json.dumps({"decode": base64.b64encode(data).decode()})) == "yes"
    try:
        list(wandb.fields(data))
    except ValueError as error:
        assert not theirs or str(error) in STRICTER
    else:
        assert theirs


def test_by_hand() -> None:
    """The example of protobuf's own description: field 1 is 150; field 2 is "testing"."""
    assert list(wandb.fields(bytes.fromhex("089601120774657374696e67"))) == [(1, 0, 150, b""), (2, 2, 0, b"testing")]
    assert list(wandb.fields(b"")) == []
    assert wandb.varints(bytes.fromhex("038e029ea705")) == [3, 270, 86942]
    assert wandb.signed(2**64 - 1) == -1 and wandb.signed(2**63 - 1) == 2**63 - 1
    assert [wandb.zigzag(value) for value in (0, 1, 2, 3, 2**64 - 1)] == [0, -1, 1, -2, -(2**63)]
    assert wandb.double(struct.pack("<d", 0.1)) == 0.1 and wandb.single(struct.pack("<f", 0.5)) == 0.5
    assert wandb.text_field(b"a\xff") == "a\ufffd"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("0a05616263", "field 1 ends behind its message"),
        ("09000000", "field 1 ends behind its message"),
        ("0d00", "field 1 ends behind its message"),
        ("08", "a number without end"),
        ("08ff", "a number without end"),
        ("80" * 11, "a number without end"),
        ("0affffffffffffffffff01", "field 1 ends behind its message"),
        ("00", "field number 0"),
        ("808080801000", "more than 29 bits"),
        ("0b0c", "wire type 3"),
        ("0e", "wire type 6"),
    ],
)
def test_broken_messages_say_why(data: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        list(wandb.fields(bytes.fromhex(data)))


@pytest.mark.parametrize("read", [wandb.double, wandb.single])
def test_a_number_of_another_length_is_refused(read) -> None:
    with pytest.raises(ValueError, match="bytes"):
        read(b"\0" * 6)


def test_a_failing_writer_fails_the_test_with_what_it_said() -> None:
    with pytest.raises(pytest.fail.Exception, match="boom"):
        run_writer("raise SystemExit('boom')")
    with pytest.raises(pytest.fail.Exception, match="ended with 3"), live_writer("raise SystemExit(3)") as writer:
        writer.say("hello")


def test_a_missing_environment_fails_and_says_what_to_do(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSCOPE_TEST_WRITERS", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="has no wandb: run `make test`"):
        run_writer("pass")
