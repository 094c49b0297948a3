"""What an EAGLE-3 head's config.json says, in both published layouts.

One is flat, as EAGLE's authors write it; the other, of the speculators project, describes the layer in a section
``transformer_layer_config``. Entries differ between real heads, and one that is overlooked collapses acceptance without
an error: all are honoured, and those that nobody here knows are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.engines.decoding.heads.settings import Settings
from pipeline.records.failure import InputError

DEFAULT_ROPE_BASE = 10000.0
"""Where none is given: llama's, never the target's."""

_NO_WINDOW = 2**31

_LLAMA3 = "factor low_freq_factor high_freq_factor"
_YARN_MAY = "attention_factor beta_fast beta_slow mscale mscale_all_dim truncate"
_ROPES: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "llama3": (frozenset(_LLAMA3.split()), frozenset({"original_max_position_embeddings"})),
    "yarn": (frozenset({"factor"}), frozenset({"original_max_position_embeddings", *_YARN_MAY.split()})),
}
"""Kinds of rotary scaling that do not depend on how long a text is: parameters they must and may have."""


@dataclass(frozen=True, kw_only=True)
class Eagle3Config:
    """``states``: indices of the target's hidden states to fuse (as ``hidden.HiddenTap``), None for the default.

    ``rope`` as transformers describes it; some of its kinds depend on ``trained_length``, in tokens.
    ``window``: how far the layer looks back, None for the whole past. ``qk_norm``: queries and keys are normed, as in
    a qwen3 layer. Of the norms, ``norm_before_residual`` takes the residual from the normed state, ``norm_before_fc``
    norms the states together before they are fused and ``fc_norm`` each of them, ``norm_output`` carries the state on
    to the next step as it was normed for the output layer.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    draft_vocabulary: int
    norm_eps: float
    rope: Mapping[str, object]
    trained_length: int
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    window: int | None
    states: tuple[int, ...] | None
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def states_of(self, target_layers: int, what: str) -> tuple[int, ...]:
        """The target's hidden states to fuse. Raises InputError for a target that has no such states."""
        states = self.states or (2, target_layers // 2, target_layers - 3)
        if min(states) < 0 or max(states) > target_layers:
            raise InputError(
                f"{what}: fuses hidden states {', '.join(map(str, states))}, its target has 0 to {target_layers}"
            )
        return states


def eagle3_config(settings: Settings, target_hidden_size: int, target_vocabulary: int, what: str) -> Eagle3Config:
    """``settings`` checked, and found to fit a target of that size and vocabulary. Raises InputError if they do not."""
    layer = settings.section("transformer_layer_config")
    config = _flat(settings) if layer is None else _sectioned(settings, layer)
    settings.refuse_the_rest()
    if layer is not None:
        layer.refuse_the_rest()
    if config.target_hidden_size != target_hidden_size:
        raise InputError(
            f"{what}: reads hidden states of {config.target_hidden_size}, its target's are {target_hidden_size}: "
            "this head belongs to another model"
        )
    if config.vocabulary != target_vocabulary:
        raise InputError(
            f"{what}: vocab_size is {config.vocabulary}, its target's {target_vocabulary}: "
            "this head belongs to another model"
        )
    if config.draft_vocabulary > config.vocabulary:
        raise InputError(
            f"{what}: draft_vocab_size is {config.draft_vocabulary}, more than the target's {config.vocabulary}"
        )
    if config.heads % config.kv_heads:
        raise InputError(f"{what}: {config.heads} attention heads cannot share {config.kv_heads} key and value heads")
    return config


def _flat(settings: Settings) -> Eagle3Config:
    nested = settings.section("eagle_config") or Settings({}, settings.what)
    nested.only("use_aux_hidden_state", True)
    nested.only("use_input_layernorm_in_first_layer", True)
    nested.only("use_last_layernorm", True)
    nested.only("use_mtp_layernorm", False)
    nested.only("next_layer_regular", True)
    nested.only("parallel_draft_step", 1)
    states, layers = settings.integers("eagle_aux_hidden_state_layer_ids"), None
    if states is None and (layers := nested.integers("eagle_aux_hidden_state_layer_ids")) is not None:
        # Here two conventions are in use, and SGLang tells them apart by the first: 1 counts layers from 0 whose
        # outputs are meant, anything else counts hidden states, as everywhere else.
        states = tuple(layer + 1 for layer in layers) if layers[0] == 1 else layers
    settings.ignore("num_aux_hidden_states", "target_num_hidden_layers")  # the shape of fc, and the states, say so too
    norm_before_fc = nested.flag("norm_before_fc") or settings.flag("norm_before_fc")
    nested.refuse_the_rest()
    return _config(settings, settings, states, settings.flag("norm_before_residual"), norm_before_fc)


def _sectioned(settings: Settings, layer: Settings) -> Eagle3Config:
    settings.only("speculators_model_type", "eagle3")
    settings.ignore("speculators_version", "embed_requires_grad", "enable_sp_ulysses")
    if (about := settings.section("speculators_config")) is not None:  # what it was trained for, and to be served how
        about.only("algorithm", "eagle3")
    states = settings.integers("eagle_aux_hidden_state_layer_ids")
    # Readers of this layout differ in what a missing entry means, so it has to be there.
    norm_before_residual = settings.flag("norm_before_residual", default=None)
    return _config(settings, layer, states, norm_before_residual, settings.flag("norm_before_fc"))


def _config(
    settings: Settings,
    layer: Settings,
    states: tuple[int, ...] | None,
    norm_before_residual: bool,
    norm_before_fc: bool,
) -> Eagle3Config:
    kind = layer.choice("model_type", "llama", "qwen3")
    layer.only("num_hidden_layers", 1)
    layer.only("hidden_act", "silu")
    for gated in ("bias", "qkv_bias"):
        layer.only(gated, False)
    hidden_size, heads = layer.integer("hidden_size"), layer.integer("num_attention_heads")
    vocabulary = layer.integer("vocab_size")
    return Eagle3Config(
        hidden_size=hidden_size,
        target_hidden_size=settings.integer("target_hidden_size", hidden_size),
        intermediate_size=layer.integer("intermediate_size"),
        heads=heads,
        kv_heads=layer.integer("num_key_value_heads", heads),
        head_dim=layer.integer("head_dim", max(1, hidden_size // heads)),
        vocabulary=vocabulary,
        draft_vocabulary=settings.integer("draft_vocab_size", vocabulary),
        norm_eps=layer.number("rms_norm_eps", 1e-6),
        rope=_rope(layer),
        trained_length=layer.integer("max_position_embeddings", 2048),
        attention_bias=layer.flag("attention_bias"),
        mlp_bias=layer.flag("mlp_bias"),
        qk_norm=kind == "qwen3",
        window=_window(layer),
        states=states,
        norm_before_residual=norm_before_residual,
        norm_before_fc=norm_before_fc,
        fc_norm=settings.flag("fc_norm"),
        norm_output=settings.flag("norm_output"),
    )


def _window(layer: Settings) -> int | None:
    """How far the layer looks back; only ``layer_types`` says for certain that a ``sliding_window`` is in use."""
    kinds = layer.strings("layer_types")
    used = layer.flag("use_sliding_window", default=True)
    window = layer.integer("sliding_window", _NO_WINDOW)
    kind = kinds[0] if kinds else "full_attention"
    if kind not in ("full_attention", "sliding_attention"):
        layer.refuse("layer_types", kind, "full_attention, sliding_attention")
    given = used and window != _NO_WINDOW
    if kind == "sliding_attention" and not given:
        layer.refuse("sliding_window", None, "a window, for layer_types says that there is one")
    if given and not kinds:
        layer.refuse("sliding_window", window, "null, or layer_types beside it that says whether it is in use")
    return window if kind == "sliding_attention" else None


def _rope(layer: Settings) -> dict[str, object]:
    """``rope_type``, ``rope_theta`` and the kind's own parameters, from any of the places where they are written."""
    new, old = layer.mapping("rope_parameters"), layer.mapping("rope_scaling")
    if new and old and new != old:
        layer.refuse("rope_scaling", old, "the same as rope_parameters")
    layer.only("partial_rotary_factor", 1, 1.0)
    base = layer.number("rope_theta", DEFAULT_ROPE_BASE)
    rope = {name: value for name, value in (new or old).items() if value is not None}
    kind = str(rope.pop("rope_type", rope.pop("type", "default")))
    rope.pop("type", None)
    if rope.pop("partial_rotary_factor", 1.0) != 1.0 or kind not in _ROPES:
        layer.refuse("rope_scaling", kind, f"{', '.join(_ROPES)} over whole heads")
    needed, optional = _ROPES[kind]
    for name, value in {**dict.fromkeys(needed), **rope}.items():
        if name not in (*needed, *optional, "rope_theta"):
            layer.refuse(f"rope_scaling {name}", value, ", ".join(sorted(needed | optional)) or "no parameters")
        if not isinstance(value, int | float):
            layer.refuse(f"rope_scaling {name}", value, "a number")
    return {"rope_type": kind, "rope_theta": base, **rope}
