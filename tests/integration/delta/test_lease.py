"""One holder of a lease at a time, whatever happens to processes and to answers of the store."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline.delta.store import lease as leases
from pipeline.delta.store.lease import Lease, LeaseHeldError
from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.store import Store, StoreError
from pipeline.errors import FencedError, LakeError
from tests.support.paths import ROOT
from tests.support.processes import ended
from tests.support.stores.s3 import BUCKET, S3Server, s3_server

SECONDS = 3.0
NAME = "_pgdelta/locks/apply"
# acquires the lease, then checks it until it is lost; stdin's end releases it
HOLD = """\
import json, sys, threading, time
from pipeline.delta.store.lease import Lease
from pipeline.delta.store.object_store import ObjectStore
from pipeline.delta.store.store import Store
from pipeline.errors import LakeError

url, options, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
lease = Lease(ObjectStore(url, options, patience=1.0), "_pgdelta/locks/apply", "apply", seconds)
lease.acquire()
print("held", lease.number, lease.suspect, flush=True)
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), end.set()), daemon=True).start()
try:
    while not end.wait(0.05):
        lease.check()
    lease.release()
    print("released", flush=True)
except LakeError as error:
    print("lost", error, flush=True)
"""


@pytest.fixture
def server() -> Iterator[S3Server]:
    with s3_server() as found:
        yield found


def store_of(server: S3Server, patience: float = 1.0) -> Store:
    return ObjectStore(f"s3://{BUCKET}/lake", server.options, patience=patience)


def lease_of(server: S3Server, seconds: float = SECONDS) -> Lease:
    return Lease(store_of(server, seconds / 6), NAME, "apply", seconds)


def acquired(server: S3Server) -> Lease:
    lease = lease_of(server)
    lease.acquire()
    return lease


def record(server: S3Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.read(f"lake/{NAME}"))
    return found


@contextmanager
def holder(server: S3Server, seconds: float = SECONDS) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Give a process that holds the lease, with its number and the suspect one."""
    command = [sys.executable, "-c", HOLD, f"s3://{BUCKET}/lake", json.dumps(server.options), str(seconds)]
    while True:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with ended(process):
            if not (line := line_of(process)):  # the store has not answered in time, on a busy machine
                continue
            word, number, suspect = line.split()
            assert word == "held"
            yield process, int(number), int(suspect)
            return


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.quick
def test_a_holder_that_renews_refuses_others_and_releases_to_the_next(server: S3Server) -> None:
    with holder(server) as (process, number, suspect):
        assert suspect < number
        time.sleep(1.5 * SECONDS)  # it is renewed
        with pytest.raises(LeaseHeldError, match=rf"Another apply is running: .* \(process {process.pid} on"):
            lease_of(server).acquire()
        assert process.stdin is not None
        process.stdin.close()
        assert line_of(process) == "released\n"
    waits: list[str] = []
    lease = lease_of(server)
    lease.acquire(waits.append)
    assert (lease.number, lease.suspect, waits) == (number + 1, suspect, [])
    lease.release()
    assert record(server)["is_released"]


@pytest.mark.promise("one job at a time")
def test_the_lease_of_a_killed_process_is_taken_over_after_its_length(server: S3Server) -> None:
    with holder(server) as (process, number, _):
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    waits: list[str] = []
    lease = lease_of(server)
    assert (lease.find_holder() or "").startswith(f"process {process.pid} on ")
    began = time.monotonic()
    lease.acquire(waits.append)
    assert SECONDS <= time.monotonic() - began < SECONDS + 5
    assert (lease.number, lease.suspect) == (number + 1, number)
    assert len(waits) == 1
    assert "which may have ended. Waiting up to 3 seconds" in waits[0]
    lease.release()
    again = lease_of(server)
    assert again.find_holder() is None
    again.acquire()
    assert (again.number, again.suspect) == (number + 2, number), "the killed process is still suspect"
    again.release(is_clean=False)
    last = acquired(server)
    assert (last.number, last.suspect) == (number + 3, number + 2)
    last.release()


def test_a_stopped_process_finds_out_that_another_has_taken_over(server: S3Server) -> None:
    with holder(server) as (process, number, _):
        process.send_signal(signal.SIGSTOP)
        lease = acquired(server)
        assert (lease.number, lease.suspect) == (number + 1, number)
        process.send_signal(signal.SIGCONT)
        said = line_of(process)
        assert said.startswith("lost Another apply (process ")
        assert "so this one ends. Nothing is lost" in said
        lease.check()
        lease.release()


def test_a_stopped_process_continues_if_no_other_has_taken_over(server: S3Server) -> None:
    with holder(server) as (process, number, _):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * SECONDS)
        process.send_signal(signal.SIGCONT)
        time.sleep(SECONDS / 2)
        assert process.stdin is not None
        process.stdin.close()
        assert line_of(process) == "released\n"
    assert record(server)["number"] == number


def test_a_wait_ends_when_it_is_stopped(server: S3Server) -> None:
    with holder(server, 60) as (process, *_):
        process.send_signal(signal.SIGSTOP)
        stop = threading.Event()
        threading.Timer(0.5, stop.set).start()
        with pytest.raises(LakeError, match="Stopped while"):
            lease_of(server).acquire(stop=stop)


def test_changes_whose_answers_are_lost_are_recognized() -> None:
    with s3_server(loses=2) as server:
        lease = acquired(server)
        end = time.monotonic() + 2 * SECONDS
        while time.monotonic() < end:
            lease.check()
            time.sleep(0.05)
        assert server.lost > 3
        lease.release()
        assert record(server)["is_released"]


def test_a_renewal_that_was_made_is_recognized_although_the_client_gave_up(server: S3Server) -> None:
    lease = acquired(server)
    lost: list[str] = []

    def lose(request: dict[str, Any]) -> str | None:
        """Answer by errors for long, after the first replacement was carried out."""
        if request["REQUEST_METHOD"] == "PUT":
            lost.append(request["PATH_INFO"])
        return ("lost" if len(lost) == 1 else "500") if lost else None

    server.fault = lose
    before = record_now(lease)
    time.sleep(SECONDS)
    server.fault = lambda request: None
    time.sleep(SECONDS / 2)
    assert lost
    assert record(server)["renewals"] > before
    lease.check()
    lease.release()


def check_always(lease: Lease) -> None:
    """Check a lease until it is lost, as a job does before each commit."""
    while True:
        lease.check()
        time.sleep(0.05)


def record_now(lease: Lease) -> int:
    assert lease._record is not None
    return lease._record.renewals


@pytest.mark.sample(1)
@pytest.mark.parametrize("fault", ["500", "503", "silent", "cut"])
def test_a_store_that_fails_too_long_ends_the_holder_unless_it_recovers(server: S3Server, fault: str) -> None:
    lease = acquired(server)
    server.fault = lambda request: fault
    with pytest.raises(FencedError, match=r"could not be renewed in time, so this apply ends"):
        check_always(lease)
    server.fault = lambda request: None
    server.close()  # nothing is silent any more
    lease.check()
    lease.release()


@pytest.mark.quick
def test_credentials_that_expire_end_the_holder_with_a_sentence(server: S3Server) -> None:
    lease = acquired(server)
    server.fault = lambda request: "expired"
    with pytest.raises(FencedError, match=r"could not be renewed in time.*The credentials have expired"):
        check_always(lease)
    lease.release()
    with pytest.raises(StoreError, match=r"The credentials have expired\. Renew them"):
        lease_of(server, 60).acquire()


def test_a_deleted_lease_ends_the_holder_and_the_next_number_is_greater(server: S3Server) -> None:
    lease = acquired(server)
    store_of(server).delete([NAME])
    with pytest.raises(FencedError, match="was removed, so this apply ends"):
        check_always(lease)
    following = acquired(server)
    assert following.number > following.suspect >= lease.number
    following.release()


def test_a_clock_that_is_off_changes_nothing(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(server) as (process, number, _):
        monkeypatch.setattr(time, "time", lambda: 0.0)
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        with pytest.raises(LeaseHeldError):
            lease_of(server).acquire()
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        began = time.monotonic()
        lease = acquired(server)
        assert time.monotonic() - began >= SECONDS
        assert lease.number == number + 1
        lease.release()


def test_another_object_in_its_place_is_named(server: S3Server) -> None:
    store_of(server).write(NAME, b"something else")
    with pytest.raises(LakeError, match="is not a lease of pgdelta"):
        lease_of(server).acquire()


def run_races(server: S3Server, rounds: int) -> None:
    """Let processes of one machine acquire the lease again and again, each for one unprotected increment."""
    store = store_of(server, 10)
    store.write("count", b"0")
    numbers: list[int] = []

    def compete(share: int) -> None:
        for _ in range(share):
            lease = lease_of(server, 60)
            while True:
                try:
                    lease.acquire()
                    break
                except LeaseHeldError:
                    continue
            count = int(store.read("count")[0])
            numbers.append(lease.number)
            store.write("count", f"{count + 1}".encode())
            lease.release()

    threads = 4
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(compete, rounds // threads) for _ in range(threads)]:
            done.result()
    assert int(store.read("count")[0]) == len(numbers) == rounds
    assert numbers == sorted(set(numbers))


@pytest.mark.promise("one job at a time")
def test_of_many_that_compete_one_holds_the_lease(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_FIRST_POLL", 0.01)
    run_races(server, 12)


@pytest.mark.slow
def test_of_many_that_compete_2000_times_one_holds_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_FIRST_POLL", 0.01)
    with s3_server(loses=7) as server:
        run_races(server, 2000)
        assert server.lost > 100
