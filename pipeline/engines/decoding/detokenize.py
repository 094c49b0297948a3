"""From a transformers tokenizer to the text that clients are given."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from pipeline.engines.stop_strings import Detokenizer


def detokenizer(tokenizer: PreTrainedTokenizerBase) -> Detokenizer:
    """Text as vLLM gives it by default: without special tokens, and spaces as they were generated."""
    special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    spoken = frozenset(tokenizer.get_vocab().values()) - frozenset(special.values())
    return Detokenizer(
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)),
        silent=lambda token: token not in spoken,
        special=special,
    )
