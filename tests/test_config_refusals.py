"""What is refused of a configuration: in one line that names the key and what it may be."""

from __future__ import annotations

import pytest
from refusing import refusal

from pipeline.config import load_settings
from pipeline.records.cell import Sampling

REFUSED = [
    ("protocl.seeds=2", "protocl: unknown key; known there: targets, workloads, samplings"),
    ("protocol.sed=2", "protocol.sed: unknown key; known there: search_prompts, confirm_prompts, seeds"),
    ("+protocol.sed=2", "protocol.sed: unknown key; known: search_prompts, confirm_prompts, seeds"),
    ("+sede=2", "sede: unknown key; known: name, output_dir, targets"),
    ("+targets.smollm2.drafts.ngram.mx=2", "targets.smollm2.drafts.ngram.mx: unknown key; known: method, min_n, max_n"),
    ("+workloads.chat.name=x", "workloads.chat.name: unknown key"),
    ("trackin=none", "trackin: unknown key"),
    ("target=[smollm3]", "target: no option 'smollm3'; choose from: llama31_8b, qwen3_30b_a3b, qwen3_8b, smollm2"),
    ("target=smollm3", "target: no option 'smollm3'; choose from: llama31_8b, qwen3_30b_a3b, qwen3_8b, smollm2"),
    ("tracking=off", "tracking: no option 'off'; choose from: local, none"),
    ("target=[smollm2,smollm2]", "appears more than once"),
    ("target=[]", "targets: choose at least one, as in target=[NAME]; available: llama31_8b"),
    ("workload=[]", "workloads: choose at least one, as in workload=[NAME]; available: chat, code_edit, creative"),
    ("sampling=[]", "samplings: choose at least one, as in sampling=[NAME]; available: greedy"),
    ("concurrency=[]", "concurrency: must hold at least one number"),
    ("concurrency=[1,2,1]", "concurrency: 1 is given twice"),
    ("concurrency=[0]", "concurrency: each must be at least 1, not 0"),
    ("concurrency=4", "concurrency: must be a list, not 4"),
    ("concurrency=[1.5]", "concurrency[0]: must be a whole number, not 1.5"),
    ("concurrency=[true]", "concurrency[0]: must be a whole number, not true"),
    ("concurrency=1,2", "concurrency=1,2: one sweep takes lists; write concurrency=[a,b]"),
    ("concurrency=[1,", "'concurrency=[1,': not an override; write key=value"),
    ("--help", "'--help': not an override; write key=value"),
    ("", "'': not an override"),
    ("protocol=3", "protocol: must be a mapping, not 3"),
    ("protocol.seeds=many", 'protocol.seeds: must be a whole number, not "many"'),
    ("protocol.seeds='3'", 'protocol.seeds: must be a whole number, not "3"'),
    ("protocol.seeds=0", "protocol.seeds: must be at least 1, not 0"),
    ("protocol.seeds=${nothing}", "protocol.seeds: Interpolation key 'nothing' not found"),
    ("protocol.confirm_prompts=2", "protocol.confirm_prompts: must be at least 3, not 2"),
    ("protocol.remeasure=-1", "protocol.remeasure: must be at least 0, not -1"),
    ("protocol.drift_least=-0.1", "protocol.drift_least: must be at least 0, not -0.1"),
    ("protocol.tie_margin=nan", "protocol.tie_margin: must be a finite number, not nan"),
    ("protocol.a_a=1", "protocol.a_a: must be true or false, not 1"),
    ("fresh=maybe", 'fresh: must be true or false, not "maybe"'),
    ("search.strategy=random", "search.strategy: must be one of 'guided', 'grid', 'tpe', not \"random\""),
    ("search.max_candidates=0", "search.max_candidates: must be at least 1, not 0"),
    ("engine.name=vlm", "engine.name: must be one of 'decoding', 'simulated', not \"vlm\""),
    ("cluster.gpus_per_worker=0.5", "cluster.gpus_per_worker: must be a whole number, not 0.5"),
    ("cluster.address=local", "cluster.address: must be null, auto or the address of a cluster"),
    ("cluster.workers=0", "cluster.workers: must be at least 1, not 0"),
    ("cluster.call_timeout_s=0", "cluster.call_timeout_s: must be greater than 0, not 0.0"),
    ("budget.cell_s=-1", "budget.cell_s: must be greater than 0, not -1.0"),
    ("policy.margin=-0.1", "policy.margin: must be at least 0, not -0.1"),
    ("constraints.tpot_ms_p99=0", "constraints.tpot_ms_p99: must be greater than 0, not 0.0"),
    ("constraints.speedup_e2e=-1", "constraints.speedup_e2e: must be greater than 0, not -1.0"),
    ("constraints.gap_ms_p95=inf", "constraints.gap_ms_p95: must be a finite number, not inf"),
    ("constraints.ttft_ms_p95=nan", "constraints.ttft_ms_p95: must be a finite number, not nan"),
    ("constraints.ttft_ms_p99=fast", 'constraints.ttft_ms_p99: must be a number, not "fast"'),
    ("constraints.tpot_ms_p98=50", "constraints.tpot_ms_p98: unknown key; known there: tpot_ms_p95, tpot_ms_p99"),
    ("constraints=50", "constraints: must be a mapping, not 50"),
    ("samplings.greedy.temperature=-1", "samplings.greedy.temperature: must be at least 0, not -1.0"),
    ("samplings.greedy.top_p=0", "samplings.greedy.top_p: must be greater than 0 and at most 1, not 0.0"),
    ("samplings.greedy.top_p=1.1", "samplings.greedy.top_p: must be greater than 0 and at most 1, not 1.1"),
    ("samplings.greedy.min_p=1", "samplings.greedy.min_p: must be at least 0 and less than 1, not 1.0"),
    ("samplings.greedy.top_k=-1", "samplings.greedy.top_k: must be at least 0, not -1"),
    ("samplings.greedy.repetition_penalty=0", "repetition_penalty: must be from 0.01 to 100 (1 is none), not 0.0"),
    ("samplings.greedy.presence_penalty=-2.1", "presence_penalty: must be from -2 to 2 (0 is none), not -2.1"),
    ("samplings.greedy.frequency_penalty=3", "frequency_penalty: must be from -2 to 2 (0 is none), not 3.0"),
    ("workloads.chat.context_tokens=[5,-1]", "workloads.chat.context_tokens: each must be at least 0"),
    ("workloads.chat.context_tokens=[5,5]", "workloads.chat.context_tokens: 5 is given twice"),
    ("workloads.chat.context_tokens=[a]", 'workloads.chat.context_tokens[0]: must be a whole number, not "a"'),
    ("workloads.chat.context_tokens=0", "workloads.chat.context_tokens: must be at least 1, not 0"),
    ("workloads.chat.context_tokens=long", 'workloads.chat.context_tokens: must be a whole number, not "long"'),
    ("workloads.chat.context_path=book.txt", "workloads.chat.context_path: lengthens no prompt while context_tokens"),
    ("workloads.chat.stop=[a,'???']", "workloads.chat.stop[1]: cannot be '???', by which YAML files here mark a value"),
    ("workloads.chat.path='???'", "workloads.chat.path: must be set"),
    ("workloads.chat.stop=['']", "workloads.chat.stop: must be strings that are not empty and without U+FFFD"),
    ("workloads.chat.stop=['a\ufffd']", "workloads.chat.stop: must be strings that are not empty and without U+FFFD"),
    ("workloads.chat.stop=END", 'workloads.chat.stop: must be a list, not "END"'),
    ("workloads.chat.stop=[1]", "workloads.chat.stop[0]: must be a string, not 1"),
    ("workloads.chat.stop_token_ids=[2,-1]", "workloads.chat.stop_token_ids: must be token ids, each at least 0"),
    ("workloads.chat.stop_token_ids=[a]", 'workloads.chat.stop_token_ids[0]: must be a whole number, not "a"'),
    ("workloads.chat.output_tokens=1", "workloads.chat.output_tokens: must be at least 2, not 1"),
    ("output_tokens=1", "output_tokens: must be at least 2, not 1"),
    ("output_tokens=lots", 'output_tokens: must be a whole number, not "lots"'),
    ("workloads.chat.format=jsonl", "workloads.chat.format: must be one of 'bundled', 'spec_bench', 'sharegpt'"),
    ("workloads.chat.format=chat", "workloads.chat.path: must be set to a file of prompts (format chat)"),
    ("workloads.chat.categories=[qa]", "workloads.chat.categories: only format spec_bench has categories"),
    ("workload=[spec_bench]", "workloads.spec_bench.path: must be set to a file of prompts (format spec_bench)"),
    ("targets.smollm2.source=''", "targets.smollm2.source: must be not empty"),
    (
        "targets.smollm2.dtype=fp8",
        "targets.smollm2.dtype: must be one of 'float32', 'bfloat16', 'float16', not \"fp8\"",
    ),
    ("targets.smollm2.revision=12345", "targets.smollm2.revision: must be a string, not 12345"),
    ("targets.smollm2.chat_template=none.jinja", "chat_template 'none.jinja' cannot be read"),
    ("targets.smollm2.chat_template=false", "targets.smollm2.chat_template: must be a string, not false (YAML reads"),
    ("+targets.smollm2.chat_template_args.x=[1]", "targets.smollm2.chat_template_args.x: must be a number, a string"),
    (
        "targets.smollm2.drafts.ngram.method=ngrm",
        "method: 'ngrm' is unknown; known: ngram, draft_model, early_exit, medusa, eagle3",
    ),
    ("~targets.smollm2.drafts.ngram.method", "targets.smollm2.drafts.ngram.method: is missing; known: ngram"),
    ("targets.smollm2.drafts.ngram.gammas=[0]", "targets.smollm2.drafts.ngram.gammas: each must be at least 1, not 0"),
    ("targets.smollm2.drafts.ngram.gammas=[]", "targets.smollm2.drafts.ngram.gammas: must hold at least one number"),
    ("targets.smollm2.drafts.ngram.gammas=[2,2]", "targets.smollm2.drafts.ngram.gammas: 2 is given twice"),
    ("targets.smollm2.drafts.ngram.gammas=3", "targets.smollm2.drafts.ngram.gammas: must be a list, not 3"),
    ("~targets.smollm2.drafts.ngram.gammas", "targets.smollm2.drafts.ngram.gammas: is missing"),
    ("targets.smollm2.drafts.ngram.min_n=4", "targets.smollm2.drafts.ngram.min_n: must be at most max_n (3), not 4"),
    (
        "targets.smollm2.drafts.early_exit.layers=0",
        "targets.smollm2.drafts.early_exit.layers: must be at least 1, not 0",
    ),
    ("targets.smollm2.drafts.ngram.match=any", "match: must be one of 'first', 'last', not \"any\""),
    ("targets.smollm2.drafts.ngrm.gammas=[2]", "targets.smollm2.drafts.ngrm: unknown key; known there: ngram, early"),
    ("~targets.smollm2.drafts", "targets.smollm2.drafts: must name at least one draft"),
    ("~targets.smollm2.drafts.medusa", "'targets.smollm2.drafts.medusa' does not exist"),
    ("+draft@targets.smollm2.drafts.new=early_exit", "targets.smollm2.drafts.new.layers: must be set"),
    ("+draft@targets.smollm2.drafts.new=medusa", "targets.smollm2.drafts.new.source: must be set"),
    ("+draft@targets.smollm2.drafts.off=ngram", "off cannot be a name: it means no speculation"),
    ("+draft@targets.smollm2.drafts.new=nothing", "draft: no option 'nothing'; choose from: early_exit, llama31_8b"),
    ("name='a/b'", "name: 'a/b' cannot be a name; use letters, digits, '_', '-' and '.'"),
    ("name='..'", "name: '..' cannot be a name"),
    ("name=''", "name: '' cannot be a name"),
    ("name=off", "name: off cannot be a name"),
    ("name=null", "name: must be a string, not null"),
    ("output_dir='s3://bucket/runs'", "output_dir: must be a folder, not 's3://bucket/runs'"),
    ("hydra.searchpath=folder", "hydra.searchpath: must be a list of folders"),
]


class TestRefusals:
    @pytest.mark.parametrize(("override", "said"), REFUSED, ids=[override for override, _ in REFUSED])
    def test_one_line_names_the_key_and_what_it_may_be(self, override: str, said: str) -> None:
        assert said in refusal(override)

    def test_an_unknown_configuration_lists_those_there_are(self) -> None:
        message = refusal(config_name="weekly")
        assert message.startswith("weekly: no such configuration")
        assert "sweep" in message

    def test_the_values_at_the_edge_are_allowed(self) -> None:
        (sampling,) = load_settings(
            ["samplings.greedy.top_p=1", "samplings.greedy.min_p=0", "samplings.greedy.temperature=0"]
        ).samplings
        assert sampling == Sampling(name="greedy")

    @pytest.mark.parametrize(
        "override", ["tracking.uri={uri:'http://me:hunter2@host'}", "tracking.uri=http://me:hunter2@host, x="]
    )
    def test_no_message_repeats_a_password(self, override: str) -> None:
        assert "hunter2" not in refusal(override)
