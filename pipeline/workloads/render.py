"""From messages to the token ids a target is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from jinja2 import TemplateError

from pipeline.engines.contract import Tokenizer
from pipeline.records.failure import InputError
from pipeline.records.target import Target
from pipeline.workloads.prompt import Message, Prompt

_CHOICES = "'model' (the tokenizer's own), 'plain' (no template) or the path of a Jinja file"


def render(prompt: Prompt, target: Target, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token ids of ``prompt`` for ``target``, up to where the assistant's answer begins.

    A chat template writes whatever special tokens the model wants, the beginning-of-text token (BOS) among them, so its
    text is encoded without adding any (as transformers' own ``apply_chat_template`` does). Without a template the
    text is given one BOS if the tokenizer adds one by itself; never two.

    Raises InputError for a target without a usable template, or a prompt that its template refuses; ValueError for a
    prompt that still awaits answers.
    """
    if prompt.awaits:
        raise ValueError(f"prompt {prompt.id} still awaits the answers at messages {prompt.awaits}")
    if target.chat_template == "plain":
        tokens = _plain(prompt, tokenizer)
    else:
        tokens = tokenizer.encode(chat_text(prompt, target, tokenizer), add_special_tokens=False)
    if not tokens:
        raise InputError(f"target {target.name}: prompt {prompt.id!r} has no tokens")
    return tuple(tokens)


def answered(prompt: Prompt, index: int, text: str) -> Prompt:
    """``prompt`` with the awaited answer at message ``index`` filled in. Raises ValueError if it is not awaited."""
    if index not in prompt.awaits:
        raise ValueError(f"prompt {prompt.id} does not await message {index}, only {prompt.awaits}")
    messages = (*prompt.messages[:index], Message("assistant", text), *prompt.messages[index + 1 :])
    return replace(prompt, messages=messages, awaits=tuple(i for i in prompt.awaits if i != index))


def read_template(target: Target) -> str | None:
    """The text of the Jinja file that ``chat_template`` names; None for ``model`` and ``plain``. Needs no tokenizer."""
    if target.chat_template in ("model", "plain"):
        return None
    try:
        return Path(target.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"target {target.name}: chat_template {target.chat_template!r} cannot be read ({reason});"
            f" it may be {_CHOICES}"
        ) from None


def chat_text(prompt: Prompt, target: Target, tokenizer: Tokenizer) -> str:
    """``prompt`` as ``target``'s chat template writes it. Raises InputError as ``render`` does."""
    template = read_template(target)
    if template is None and not tokenizer.chat_template:
        raise InputError(
            f"target {target.name}: its tokenizer has no chat template; set targets.{target.name}.chat_template,"
            f" which may be {_CHOICES}"
        )
    conversation = [{"role": message.role, "content": message.content} for message in prompt.messages]
    try:
        return tokenizer.apply_chat_template(
            conversation,
            chat_template=template,  # by name: transformers' second place is the tools
            tokenize=False,
            add_generation_prompt=True,
            **target.chat_template_args,
        )
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:  # jinja's, or within it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"target {target.name}: the chat template cannot render prompt {prompt.id!r}: {reason}"
        ) from None


def _plain(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    text = "\n\n".join(message.content for message in prompt.messages)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_token_id
    # Asking for special tokens on the text itself could append an end-of-text token, or double a BOS it begins with.
    adds_bos = bos is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
    return [bos, *tokens] if bos is not None and adds_bos and tokens[:1] != [bos] else tokens
