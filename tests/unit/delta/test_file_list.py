"""The files of versions, against a copy of each version."""

import random
from typing import Any

import pytest

from pipeline.delta.file_list import Files, FileStore, file_key


def add(path: str, number: int = 0, vector: str | None = None) -> dict[str, Any]:
    action: dict[str, Any] = {"path": path, "size": number}
    if vector is not None:
        action["deletionVector"] = {"storageType": "u", "pathOrInlineDv": vector, "offset": 1}
    return {"add": action}


def remove(path: str, vector: str | None = None) -> dict[str, Any]:
    return {"remove": add(path, vector=vector)["add"]}


@pytest.mark.parametrize("seed", range(20))
def test_held_versions_do_not_change(seed: int) -> None:
    rng = random.Random(seed)
    store = FileStore([])
    model: dict[str, int] = {}
    held: list[tuple[Files, dict[str, int]]] = []
    for number in range(60):
        if rng.random() < 0.5:
            held.append((store.view(), dict(model)))
        actions = []
        for path in rng.sample("abcdefgh", rng.randint(0, 4)):
            if path in model and rng.random() < 0.6:
                del model[path]
                actions.append(remove(path))
            else:
                model[path] = number
                actions.append(add(path, number))
        store.apply(actions)
    for files, expected in [*held, (store.view(), model)]:
        assert {path: action["size"] for path, action in files.items()} == expected
        assert len(files) == len(expected)
        assert set(files) == set(files.keys()) == set(expected)
        assert [action["size"] for action in files.values()] == [files[path]["size"] for path in files]
        for path in "abcdefgh":
            assert (path in files) == (path in expected)


def test_a_version_without_a_view_is_not_kept() -> None:
    store = FileStore([add("a")])
    old = store.view()
    for number in range(5):
        store.apply([add(str(number))])
    assert list(old) == ["a"]
    assert store.idle_commits == 0
    newest = store.view()
    store.apply([add("x")])
    assert store.idle_commits == 1
    assert "x" not in newest


def test_deletion_vectors_make_other_files_of_one_path() -> None:
    store = FileStore([add("a")])
    store.apply([remove("a"), add("a", vector="v1")])
    one = store.view()
    store.apply([remove("a", "v1"), add("a", vector="v2")])
    assert [file["deletionVector"]["pathOrInlineDv"] for file in one.values()] == ["v1"]
    assert [file["deletionVector"]["pathOrInlineDv"] for file in store.view().values()] == ["v2"]
    assert file_key(add("a", vector="v2")["add"]) in store.view()


def test_a_path_may_be_escaped_in_other_ways() -> None:
    store = FileStore([add("a%20b%5B1%5D"), add("c")])
    store.apply([remove("a%20b[1]")])
    assert list(store.view()) == ["c"]


def test_no_files() -> None:
    assert (len(Files()), list(Files()), "a" in Files()) == (0, [], False)
