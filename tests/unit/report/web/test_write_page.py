"""`pgdelta status --html FILE`: a real lake's page, written in one step."""

import json
import os
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.errors import ConfigError
from pipeline.metadata.events import Event
from pipeline.protocol.lsn import LSN
from pipeline.report.web.write_page import write_page
from tests.support.native_lakes import NativeLake
from tests.support.web_pages import page_facts, parse_page


def test_the_command_writes_the_page_of_a_lake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = NativeLake(tmp_path / "lake", 3)
    lake.records.events.record([Event("public", "t0001", LSN(5), "evolved", "Column <x> was added.")])
    config = tmp_path / "pipeline.yaml"
    config.write_text(
        f"pipeline: p\nsource: {{conninfo: 'dbname=d'}}\nstorage: {{root: {lake.root}}}\n"
        "tables: [{source: '*.*'}]\n",
        encoding="utf-8",
    )
    file = tmp_path / "page.html"
    line = ["status", "--config", str(config), "--offline", "--html", str(file)]
    assert main.main(line) == 0
    out = "".join(capsys.readouterr().out.split())  # a narrow terminal breaks it
    assert f"wrote{file}:" in out
    page = parse_page(file.read_text(encoding="utf-8"))
    rows = [row.text for row in page.by_id("tables").every("bdi")]
    assert rows == ["public.t0000", "public.t0001", "public.t0002"]
    assert page.by_id("headline").text == "In order: 3 current, of 3 tables."
    assert "Column <x> was added." in page.by_id("events").text
    assert "First version: id oid 23, name oid 25." in page.by_id("t1").text
    assert "INT" in page.by_id("t1").text
    assert main.main([*line, "--json", "public.t0001"]) == 0
    assert json.loads(capsys.readouterr().out)["states"] == {"current": 1}
    page = parse_page(file.read_text(encoding="utf-8"))
    assert [row.text for row in page.by_id("tables").every("bdi")] == ["public.t0001"]
    assert main.main([*line, "nothing.*"]) == 2
    assert main.main([*line[:-1], str(tmp_path / "no" / "folder.html")]) == 2
    assert f"--html: Cannot write {tmp_path / 'no' / 'folder.html'}" in capsys.readouterr().err


@pytest.mark.promise("pages")
def test_a_page_is_replaced_in_one_step_and_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "page.html"
    file.write_text("before", encoding="utf-8")
    file.chmod(0o640)
    opened = file.open(encoding="utf-8")
    written = write_page(page_facts(), str(file))
    assert opened.read() == "before"  # a reader that has it open reads all of the former page
    opened.close()
    assert file.stat().st_mode & 0o777 == 0o640
    assert len(file.read_bytes()) == written.size
    assert os.listdir(tmp_path) == ["page.html"]

    def fail(number: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="No space left"):
        write_page(page_facts(), str(file))
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "page.html"
    target.write_text("kept", encoding="utf-8")
    link.symlink_to(target)
    write_page(page_facts(), str(link))
    assert target.read_text(encoding="utf-8") == "kept"
    assert not link.is_symlink()
