"""What containers do to a server: a read-only root, another user, no home, a quota of CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.service import service

CONFINED = (
    *("unshare", "--mount", "sh", "-c"),
    # May read everything, as images are readable; may write nothing, and is nobody of /etc/passwd.
    "mount --make-rprivate / && mount -o remount,ro,bind / && exec setpriv --reuid=10001 "
    "--regid=10001 --clear-groups --no-new-privs --inh-caps=-all,+dac_read_search "
    '--ambient-caps=-all,+dac_read_search --bounding-set=-all,+dac_read_search env -u HOME "$@"',
    "sh",
)

_PROBE = """
import os, sys, tempfile
assert os.getuid() == 10001 and "HOME" not in os.environ
for folder in (os.getcwd(), "/tmp", "/var/tmp"):
    try:
        open(os.path.join(folder, "probe"), "w")
    except OSError:
        continue
    sys.exit("can be written: " + folder)
"""


@pytest.mark.long
@pytest.mark.case(103)
def test_nobody_on_a_read_only_root_serves(tmp_path: Path) -> None:
    probe = subprocess.run(
        [*CONFINED, sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this machine does not confine processes: {probe.stderr[-200:]}")
    with service(real=True, device="cpu", prefix=CONFINED) as server:
        assert server.url, server.log
        assert server.get("/ready").status_code == 200
        assert server.predict("a good film").status_code == 200
        for word in ("Read-only", "Permission denied", "EACCES", "EROFS", "Errno", "Traceback"):
            assert word not in server.log


# A quota of CPU time.

QUOTA_OF_ONE = """
import json, sys, time
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(__import__("os").getpid()))
from packhorse import Encoder
import torch
with Encoder(device="cpu", dtype="float32") as encoder:
    encoder.classify(["warm"] * 100)
    stat = Path(sys.argv[1], "cpu.stat")
    def counts():
        rows = dict(line.split() for line in stat.read_text().splitlines())
        return int(rows["nr_periods"]), int(rows["nr_throttled"])
    before, until, texts = counts(), time.monotonic() + float(sys.argv[2]), 0
    while time.monotonic() < until:
        encoder.classify(["a good film that is not long"] * 200)
        texts += 200
    after = counts()
    print(json.dumps({
        "threads": encoder.info["threads"],
        "torch": torch.get_num_threads(),
        "periods": after[0] - before[0],
        "throttled": after[1] - before[1],
        "texts": texts,
    }))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with the time of one core; skips where none can be made."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: a quota of one is none")
    name = f"packhorse-test-{os.getpid()}"
    for root, limits in (
        (Path("/sys/fs/cgroup"), {"cpu.max": "100000 100000"}),
        (
            Path("/sys/fs/cgroup/cpu"),
            {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"},
        ),
    ):
        made = root / name
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            if all((made / file).exists() for file in limits):
                for file, value in limits.items():
                    (made / file).write_text(value)
                yield made
                return
        except OSError:
            continue
        finally:
            with suppress(OSError):
                made.rmdir()
    pytest.skip("no control group can be made here: neither v2 nor v1's cpu is writable")


@pytest.mark.long
@pytest.mark.case(97)
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_a_quota_of_one_core_gives_one_thread_and_hardly_a_throttled_period(
    group: Path, long_seconds: float
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUOTA_OF_ONE, str(group), str(min(long_seconds, 15))],
        stdout=subprocess.PIPE,
        text=True,
        timeout=110,
        check=True,
    )
    found = json.loads(done.stdout)
    print(found)
    assert found["threads"] == 1
    assert found["periods"] > 20
    assert found["throttled"] / found["periods"] < 0.2, found
    assert found["texts"] > 0
