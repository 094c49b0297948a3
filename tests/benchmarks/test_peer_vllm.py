"""vLLM as a peer, by a stand-in for its process that keeps the same line protocol."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.benchmarks.peer_vllm import VllmPeer
from pipeline.records.failure import InputError

STAND_IN = """
import json, os, sys, time
told = json.loads(sys.argv[1])
def reply(texts):
    print(json.dumps({"texts": texts, "cpu_s": time.process_time(), "version": "9"}), flush=True)
print("it talks as it starts", file=sys.stderr)
reply([])
for line in sys.stdin:
    prompts = json.loads(line)
    if prompts == [[13]]:
        sys.exit("no luck today")
    reply([[len(prompt), told["lookup"], int(os.environ["VLLM_CPU_KVCACHE_SPACE"])] for prompt in prompts])
"""


def start(folder: Path, python: str = sys.executable, code: str = STAND_IN, lookup: int = 0) -> VllmPeer:
    writer = folder / "writer.py"
    writer.write_text(code)
    return VllmPeer(python, folder, tokens=3, context=64, batch=8, threads=1, lookup=lookup, writer=writer)


def state(peer: VllmPeer) -> str:
    return Path(f"/proc/{peer._process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc")
def test_texts_come_in_order_and_it_is_stopped_while_others_are_timed(tmp_path: Path) -> None:
    with start(tmp_path, lookup=4) as peer:
        assert state(peer) == "T"
        assert peer.generate([(1, 2, 3), (4,)]) == ((3, 4, 1), (1, 4, 1))
        assert state(peer) == "T"
        assert peer.version == "9"
        used = peer.cpu_s
        assert peer.generate([(1, 2)]) == ((2, 4, 1),)
        assert peer.cpu_s >= used > 0
    assert peer._process.returncode is not None, "and nothing of it is left"


def test_what_it_said_last_is_the_error(tmp_path: Path) -> None:
    with start(tmp_path) as peer, pytest.raises(InputError, match="vLLM ended: no luck today"):
        peer.generate([(13,)])


@pytest.mark.parametrize(
    ("code", "message"),
    [("import vllm_that_is_nowhere", "No module named"), ("", "it said nothing")],
)
def test_a_vllm_that_does_not_start_is_one_line(code: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        start(tmp_path, code=code)
    assert str(error.value).startswith("vllm_python=")
    assert "\n" not in str(error.value)


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vllm_python=/nowhere/python: No such file"):
        start(tmp_path, python="/nowhere/python")
