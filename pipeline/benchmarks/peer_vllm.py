"""vLLM as a peer: in a process of its own Python, stopped while others are timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pipeline.benchmarks.peer_transformers import Tokens
from pipeline.records.failure import InputError

NAME = "vLLM"
WRITER = Path(__file__).with_name("vllm_writer.py")


class VllmPeer:
    """One vLLM engine in fp32 on ``threads`` CPUs. ``python``: the interpreter of an environment that has vLLM.

    ``model`` is a folder of safetensors; ``lookup`` > 0: n-gram speculation of so many tokens after a match of at most
    ``max_n``. Every text has ``tokens`` tokens, greedy, EOS ignored, of at most ``context`` tokens with its prompt, and
    at most ``batch`` are decoded at once. Raises InputError, with vLLM's own last words, when it does not start.
    """

    def __init__(
        self,
        python: str,
        model: Path,
        *,
        tokens: int,
        context: int,
        batch: int,
        threads: int,
        lookup: int = 0,
        max_n: int = 3,
        writer: Path = WRITER,
    ) -> None:
        told = {"model": str(model), "lookup": lookup, "max_n": max_n, "context": context, "batch": batch}
        bound = sorted(os.sched_getaffinity(0))[:threads]
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, bound)),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._python = python
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read when it dies
        try:
            self._process = subprocess.Popen(
                [python, str(writer), json.dumps(told | {"tokens": tokens})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "OMP_NUM_THREADS")} | environment,
                text=True,
            )
        except OSError as error:
            raise InputError(f"vllm_python={python}: {error.strerror}") from error
        self.cpu_s = 0.0
        """CPU time that its process has used, at its last reply."""
        self.version = ""
        self._reply()
        self._stop()

    def generate(self, prompts: Sequence[Tokens]) -> tuple[Tokens, ...]:
        """Continuations of ``prompts``, in their order."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(list(prompts)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said last is read below
        texts = self._reply()
        self._stop()
        return texts

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()

    def __enter__(self) -> VllmPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        """Returns when it has come to a halt: its idle threads must not spin beside what is timed next."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _reply(self) -> tuple[Tokens, ...]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            words = self._said.read().decode(errors="replace").strip().splitlines()
            raise InputError(f"vllm_python={self._python}: vLLM ended: {words[-1] if words else 'it said nothing'}")
        answer = json.loads(line)
        self.cpu_s, self.version = float(answer["cpu_s"]), str(answer["version"])
        return tuple(tuple(text) for text in answer["texts"])
