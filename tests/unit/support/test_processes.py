"""Nothing is left of a process that a test starts, also if it is stopped or the tests are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import ended, in_own_session, members
from tests.support.threads import wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to read")

# a process, and a child of it in a process group of its own; both are stopped
STOPPED = """\
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], preexec_fn=os.setpgrp)
print(child.pid, flush=True)
os.kill(child.pid, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP)
"""
TESTS = """\
import subprocess, sys, time
from tests.support.processes import in_own_session
with in_own_session([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE) as process:
    print(process.pid, process.stdout.readline(), flush=True)
    time.sleep(300)
"""


def test_a_session_is_ended_where_a_test_fails() -> None:
    def fail() -> None:
        with in_own_session([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            seen.extend([process.pid, child])
            assert set(members(process.pid)) == {process.pid, child}
            raise AssertionError("the test failed")

    seen: list[int] = []
    with pytest.raises(AssertionError, match="the test failed"):
        fail()
    assert len(seen) == 2
    assert members(seen[0]) == []


def test_a_session_is_ended_where_the_tests_are_killed() -> None:
    command = [sys.executable, "-c", TESTS, STOPPED]
    tests = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with ended(tests):
        assert tests.stdout is not None
        session = int(tests.stdout.readline().split()[0])
        assert len(members(session)) == 2
        tests.kill()
        wait_until(lambda: not members(session), 30)


def test_a_process_is_waited_for_and_closed_where_a_test_fails() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with pytest.raises(AssertionError, match="the test failed"), ended(process):
        raise AssertionError("the test failed")
    assert process.returncode == -signal.SIGKILL
    assert process.stdout is not None
    assert process.stdout.closed
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
