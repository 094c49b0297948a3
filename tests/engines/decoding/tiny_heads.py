"""Random draft heads of the tests' own sizes, and the equations that their proposals must follow."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from pipeline.benchmarks.random_heads import (
    FLAT,
    HIDDEN,
    SPECULATORS,
    eagle3_entries,
    eagle3_tensors,
    write,
    write_eagle3,
    write_medusa,
)

__all__ = ["FLAT", "HIDDEN", "SPECULATORS", "eagle3_entries", "eagle3_tensors", "write", "write_eagle3", "write_medusa"]


def medusa_logits(tensors: Mapping[str, Tensor], state: Tensor, head: int, layers: int = 1) -> Tensor:
    for layer in range(layers):
        weight, bias = tensors[f"{head}.{layer}.linear.weight"], tensors[f"{head}.{layer}.linear.bias"]
        state = state + functional.silu(weight @ state + bias)
    return tensors[f"{head}.{layers}.weight"] @ state


def fit_output_layer(
    folder: Path, target: PreTrainedModel, states: Sequence[int], texts: Sequence[Sequence[int]]
) -> None:
    """Make a head in ``folder`` right now and then: its output layer by least squares on ``texts`` of its target."""
    equations = Eagle3Equations(folder, target, states)
    with torch.no_grad():
        read = torch.cat([equations.read(text) for text in texts])
        wanted = torch.cat([torch.tensor(list(text[2:])) for text in texts])
        fitted = torch.linalg.lstsq(read, functional.one_hot(wanted, VOCABULARY).float()).solution.T
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"lm_head.weight": fitted.contiguous()}, path)


class Eagle3Equations:
    """One text at a time, without a cache: every proposal from all entries anew.

    Entry i is made of the embedding of token i + 1 and the state of token i. States of tokens before the last committed
    one are the target's, fused; after that, the outputs for the entries before.
    """

    def __init__(self, folder: Path, target: PreTrainedModel, states: Sequence[int], **flags: bool) -> None:
        entries = json.loads((folder / "config.json").read_text())
        self.layer = entries.get("transformer_layer_config", entries)
        tensors = load_file(folder / "model.safetensors")
        self.t = {n.replace("midlayer.", "layers.0."): tensor for n, tensor in tensors.items()}
        self.flags = flags
        self.target = target
        self.states = states
        embeddings = self.t.get("embed_tokens.weight")
        self.embeddings = target.get_input_embeddings().weight if embeddings is None else embeddings
        self.eps = float(self.layer["rms_norm_eps"])
        rope = self.layer.get("rope_parameters") or {}
        self.base = float(rope.get("rope_theta", self.layer.get("rope_theta", 10000.0)))

    def true_states(self, tokens: Sequence[int]) -> Tensor:
        """The target's hidden states, fused [tokens, H]."""
        with torch.no_grad():
            out = self.target(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False).hidden_states
            parts = [out[state][0] for state in self.states]
            if self.flags.get("fc_norm"):
                parts = [self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)]
            joined = torch.cat(parts, dim=-1)
            if self.flags.get("norm_before_fc"):
                joined = self._norm(joined, "input_norm")
            return joined @ self.t["fc.weight"].T

    def read(self, text: Sequence[int]) -> Tensor:
        """What the output layer reads of each entry of ``text`` whose prediction ``text`` shows, [tokens − 2, H]."""
        return self._norm(self._layer(torch.tensor(list(text[1:])), self.true_states(text)[:-1]), "norm")[:-1]

    def proposals(self, tokens: Sequence[int], count: int) -> tuple[list[int], list[Tensor]]:
        """``count`` greedy proposals after ``tokens``, and the head's logits before each."""
        text, logits = list(tokens), []
        states = self.true_states(tokens)[:-1]
        for _ in range(count):
            out = self._layer(torch.tensor(text[1:]), states)[-1]
            normed = self._norm(out, "norm")
            logits.append(self.t["lm_head.weight"] @ normed)
            token = int(logits[-1].argmax())
            text.append(token + int(self.t["d2t"][token]) if "d2t" in self.t else token)
            states = torch.cat((states, (normed if self.flags.get("norm_output") else out)[None]))
        return text[len(tokens) :], logits

    def _layer(self, tokens: Tensor, states: Tensor) -> Tensor:
        normed = self._norm(states, "layers.0.hidden_norm")
        residual = normed if self.flags.get("norm_before_residual") else states
        x = torch.cat((self._norm(self.embeddings[tokens], "layers.0.input_layernorm"), normed), dim=-1)
        x = residual + self._attend(x)
        y = self._norm(x, "layers.0.post_attention_layernorm")
        gate = functional.silu(self._linear(y, "layers.0.mlp.gate_proj"))
        return x + self._linear(gate * self._linear(y, "layers.0.mlp.up_proj"), "layers.0.mlp.down_proj")

    def _attend(self, x: Tensor) -> Tensor:
        heads, kv = int(self.layer["num_attention_heads"]), int(self.layer["num_key_value_heads"])
        count = len(x)
        q, k, v = (
            self._linear(x, f"layers.0.self_attn.{n}_proj").reshape(count, h, -1)
            for n, h in zip("qkv", (heads, kv, kv), strict=True)
        )
        if "layers.0.self_attn.q_norm.weight" in self.t:
            q, k = self._norm(q, "layers.0.self_attn.q_norm"), self._norm(k, "layers.0.self_attn.k_norm")
        q, k = self._rotated(q), self._rotated(k)
        at = torch.arange(count)
        window = self.layer.get("sliding_window") or count
        seen = (at <= at[:, None]) & (at > at[:, None] - window)
        out = torch.zeros(count, heads, v.shape[-1])
        for head in range(heads):
            shared = head // (heads // kv)
            scores = q[:, head] @ k[:, shared].T / math.sqrt(q.shape[-1])
            out[:, head] = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1) @ v[:, shared]
        return self._linear(out.reshape(count, -1), "layers.0.self_attn.o_proj")

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotary embedding of the entries 0, 1, …: pairs (d, d + D/2) turn by i / base^(2d / D)."""
        half = x.shape[-1] // 2
        angle = torch.arange(len(x))[:, None, None] / self.base ** (torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt() * self.t[f"{name}.weight"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.t[f"{name}.weight"], self.t.get(f"{name}.bias"))
