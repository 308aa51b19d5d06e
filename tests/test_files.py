"""Documents as files: round trips, refusals, and writing that is whole or not at all."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import samples

from kvplan import files
from kvplan.errors import KvplanError

BUILDERS = {
    "estimate": samples.estimate,
    "workload": samples.workload,
    "probe": samples.probe,
    "plan": samples.plan,
    "simulation": samples.simulation,
}


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_document_reads_back_equal_and_writes_the_same_bytes(kind: str, tmp_path: Path) -> None:
    document = BUILDERS[kind]()
    path = tmp_path / f"{kind}.json"
    files.write_atomically(path, files.dump(document))
    again = files.load(path)
    assert again == document
    assert files.dump(again) == path.read_text()


@pytest.mark.parametrize("kind", BUILDERS)
def test_every_document_has_the_envelope_and_obeys_its_own_schema(kind: str) -> None:
    raw = json.loads(files.dump(BUILDERS[kind]()))
    assert list(raw) == ["kind", "schema", "kvplan", "created", "data"]
    assert raw["kind"] == f"kvplan.{kind}"
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(raw, files.json_schema(kind))


def test_the_time_stamp_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert files.wrap(samples.estimate().data).created == "1970-01-01T00:00:00Z"


def envelope(**changes: object) -> bytes:
    raw = json.loads(files.dump(samples.estimate()))
    raw.update(changes)
    return json.dumps(raw).encode()


def test_a_newer_schema_is_refused_with_both_numbers() -> None:
    with pytest.raises(KvplanError, match=r"x\.json: has schema 7.*up to schema 1"):
        files.parse(envelope(schema=7), "x.json")


def test_an_unknown_field_is_ignored() -> None:
    raw = json.loads(envelope())
    raw["data"]["from_the_future"] = [1, 2]
    assert files.parse(json.dumps(raw).encode(), "x.json").data == samples.estimate().data


def test_a_wrong_type_names_the_field() -> None:
    raw = json.loads(envelope())
    raw["data"]["kv"]["bytes_per_token"] = "many"
    with pytest.raises(KvplanError, match=r"x\.json: Expected `int`, got `str` - at `\$\.data\.kv\.bytes_per_token`"):
        files.parse(json.dumps(raw).encode(), "x.json")


def test_a_negative_size_is_refused() -> None:
    raw = json.loads(envelope())
    raw["data"]["kv"]["bytes_per_token"] = -1
    with pytest.raises(KvplanError, match=r"bytes_per_token"):
        files.parse(json.dumps(raw).encode(), "x.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b'{"kind": "kvplan.plan", "sche', "not valid JSON"),
        (b"[]", "not a kvplan document"),
        (b'{"model_type": "llama"}', "not a kvplan document"),
        (b'{"kind": "kvplan.poem", "schema": 1}', "unknown document kind 'kvplan.poem'"),
        (b"\xff\xfe", "not valid JSON"),
    ],
)
def test_what_is_no_document_is_refused_in_one_line(text: bytes, words: str) -> None:
    with pytest.raises(KvplanError, match=words) as caught:
        files.parse(text, "x.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"none\.json: no such file"):
        files.load(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(KvplanError, match=r"plan\.json: cannot write: no space left"):
        files.write_atomically(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"cannot write: no such file"):
        files.write_atomically(tmp_path / "no" / "plan.json", "{}")


def test_a_new_file_has_ordinary_permissions(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        files.write_atomically(tmp_path / "plan.json", "{}")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o644


def test_schemas_exist_for_every_kind_and_no_other() -> None:
    for kind in BUILDERS:
        assert files.json_schema(kind)["title"] == f"kvplan.{kind}"
    with pytest.raises(KvplanError, match="known: model, estimate"):
        files.json_schema("poem")


def test_a_pipe_is_written_into_and_a_link_stays_a_link(tmp_path: Path) -> None:
    """A file put in the place of /dev/null or /dev/stdout would break the machine, not only this command."""
    pipe, target, link = tmp_path / "pipe", tmp_path / "target", tmp_path / "link"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_atomically(pipe, "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    target.write_text("old")
    link.symlink_to(target)
    files.write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
