"""Run by a Python that has vLLM: reads prompts as JSON lines, writes what vLLM continued them with.

``python vllm_writer.py SETTINGS``, a JSON object: model, lookup, max_n, context, batch, tokens. Imports nothing of this
project, for that Python need not have what it needs.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no reply
    from vllm import LLM, SamplingParams, __version__  # type: ignore[import-not-found]

    told = json.loads(sys.argv[1])
    speculation = {
        "method": "ngram",
        "num_speculative_tokens": told["lookup"],
        "prompt_lookup_max": told["max_n"],
        "prompt_lookup_min": 1,
    }
    llm = LLM(
        model=told["model"],
        dtype="float32",
        max_model_len=told["context"],
        max_num_seqs=told["batch"],
        enable_prefix_caching=False,  # a prompt that comes again is read again
        skip_tokenizer_init=True,
        **({"speculative_config": speculation} if told["lookup"] else {}),
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=told["tokens"], ignore_eos=True, detokenize=False)

    def reply(texts: list[list[int]]) -> None:
        replies.write(json.dumps({"texts": texts, "cpu_s": time.process_time(), "version": __version__}) + "\n")
        replies.flush()

    reply([])
    for line in sys.stdin:
        prompts = [{"prompt_token_ids": tokens} for tokens in json.loads(line)]
        done = llm.generate(prompts, sampling, use_tqdm=False)
        reply([list(out.outputs[0].token_ids) for out in done])


if __name__ == "__main__":
    main()
