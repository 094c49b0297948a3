"""RMS norms in one kernel each: transformers' take eight, and a plain step on a GPU has little but small kernels."""

from __future__ import annotations

from torch import Tensor, nn

_FAMILIES = "Llama Mistral Mixtral Qwen2 Qwen2Moe Qwen3 Qwen3Moe Phi3 Olmoe Granite"
_PLAIN = frozenset(f"{family}RMSNorm" for family in _FAMILIES.split())
"""Classes that compute w · x / rms(x), with the mean square in fp32. Others (gemma's 1 + w) stay as they are."""


class FusedRMSNorm(nn.Module):
    """w · x / sqrt(mean(x²) + ε) over the last dimension, rounded once; transformers rounds before w as well."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def fuse_norms(model: nn.Module) -> int:
    """Replace the plain RMS norms of ``model`` in place; how many there were."""
    found = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ in _PLAIN:
                setattr(parent, name, FusedRMSNorm(child.weight, child.variance_epsilon))  # type: ignore[arg-type]
                found += 1
    return found
