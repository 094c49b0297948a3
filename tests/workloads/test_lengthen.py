"""Prompts are lengthened with real text: to the length asked for, each with other text, their questions intact."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pipeline.engines.simulated import ByteTokenizer
from pipeline.records.cell import Workload
from pipeline.records.failure import InputError
from pipeline.workloads.lengthen import lengthened
from pipeline.workloads.load import load_prompts
from pipeline.workloads.material import Material, read_material
from pipeline.workloads.prompt import Message, Prompt

PROMPT = Prompt("p", (Message("system", "Be brief."), Message("user", "Who wrote this, and when?")))


class Pairs(ByteTokenizer):
    """Two bytes are a token, so that where texts meet decides how many there are; a character may be cut in two."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        raw = text.encode()
        return [int.from_bytes(raw[i : i + 2], "little") for i in range(0, len(raw), 2)]

    def decode(self, token_ids):
        raw = b"".join(token.to_bytes(2, "little").rstrip(b"\0") for token in token_ids)
        return raw.decode(errors="replace")


class Words(ByteTokenizer):
    """Spaces are lost in decoding, as some tokenizers lose some."""

    def __init__(self) -> None:
        words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self._fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._fast.encode(text, add_special_tokens=False)

    def decode(self, token_ids):
        return "word" * len(token_ids)


def length_by(tokenizer: ByteTokenizer):
    return lambda prompt: len(tokenizer.encode("\n".join(message.content for message in prompt.messages)))


def workload(tokens: int, **changes: object) -> Workload:
    return Workload(name=f"ours_ctx{tokens}", context_tokens=tokens, **changes)  # type: ignore[arg-type]


def carried(prompt: Prompt, longer: Prompt) -> str:
    """The text that ``longer`` has more than ``prompt``, whose own is where it was."""
    assert longer.id == prompt.id
    assert longer.messages[:-1] == prompt.messages[:-1]
    assert longer.messages[-1].role == prompt.messages[-1].role
    content = longer.messages[-1].content
    assert content.startswith("Reference material:\n\n")
    assert content.endswith("\n\n---\n\n" + prompt.messages[-1].content)
    return content.removeprefix("Reference material:\n\n").removesuffix("\n\n---\n\n" + prompt.messages[-1].content)


@settings(deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=400, max_size=600),
    tokens=st.integers(80, 220),
    tokenizer=st.sampled_from([ByteTokenizer(), Pairs()]),
)
def test_the_length_is_hit_from_below_whatever_the_text(text: str, tokens: int, tokenizer: ByteTokenizer) -> None:
    longer = lengthened(PROMPT, workload(tokens), text, tokenizer, length_by(tokenizer))
    length = length_by(tokenizer)(longer)
    assert tokens - 4 <= length <= tokens, "a character may take four tokens"
    if longer != PROMPT:
        assert text.startswith(carried(PROMPT, longer))


def test_a_tokenizer_that_forgets_spaces_is_corrected_for() -> None:
    text = "word " * 3000
    longer = lengthened(PROMPT, workload(500), text, Words(), length_by(Words()))
    assert length_by(Words())(longer) == 500


def test_without_a_length_prompts_stay_as_they_are() -> None:
    plain = Workload(name="ours")
    assert lengthened(PROMPT, plain, "text", ByteTokenizer(), length_by(ByteTokenizer())) is PROMPT


def test_a_prompt_without_room_for_a_heading_stays_as_it_is() -> None:
    tokenizer = ByteTokenizer()
    bare = length_by(tokenizer)(PROMPT)
    assert lengthened(PROMPT, workload(bare + 3), "text" * 99, tokenizer, length_by(tokenizer)) == PROMPT


def test_a_prompt_that_is_longer_already_is_refused() -> None:
    wanted = r"^workload ours_ctx8: prompt p has 36 tokens, more than its context_tokens 8; give a greater length$"
    with pytest.raises(InputError, match=wanted):
        lengthened(PROMPT, workload(8), "text", ByteTokenizer(), length_by(ByteTokenizer()))


@pytest.mark.parametrize(
    ("path", "source"), [(None, "that comes with the product"), ("/data/book.txt", "in /data/book.txt")]
)
def test_too_little_text_is_refused_rather_than_repeated(path: str | None, source: str) -> None:
    wanted = (
        rf"^workload ours_ctx900: prompt p: the text {source} is too short to lengthen it to 900 tokens; "
        r"name a longer plain text file as context_path$"
    )
    with pytest.raises(InputError, match=wanted):
        lengthened(PROMPT, workload(900, context_path=path), "text " * 99, ByteTokenizer(), length_by(ByteTokenizer()))


class TestMaterial:
    @pytest.mark.parametrize("name", ["chat", "summarize", "code_edit"])
    def test_bundled_prompts_carry_texts_of_other_prompts_each_its_own(self, name: str) -> None:
        prompts = load_prompts(Workload(name=name)).prompts
        material = read_material(Workload(name=f"{name}_ctx4096", path=name, context_tokens=4096))
        texts = [material.for_prompt(prompt, place) for place, prompt in enumerate(prompts)]
        assert len({text[:200] for text in texts}) == len(prompts)
        bundled = "\n\n".join(
            message.content
            for each in ("summarize", "translate", "code_edit", "chat", "creative", "math")
            for prompt in load_prompts(Workload(name=each)).prompts
            for message in prompt.messages
        )
        for prompt, text in zip(prompts, texts, strict=True):
            assert len(text) > 8192 * 6, "enough for a context of 8192 tokens"
            assert len(set(text.split("\n\n"))) > 100
            assert all(part in bundled for part in text.split("\n\n"))
            body = prompt.messages[0].content.partition("\n\n")[2]
            assert not body or body not in text, "a prompt carries its own text along"

    def test_code_is_lengthened_with_code_first_and_the_rest_with_prose(self) -> None:
        def first(name: str) -> str:
            return read_material(Workload(name="x", path=name, context_tokens=9)).circles[0][0]

        assert first("code_edit") in "\n".join(
            m.content for p in load_prompts(Workload(name="code_edit")).prompts for m in p.messages
        )
        assert first("chat") == first("summarize") == first("math") != first("code_edit")

    def test_a_file_is_read_round_from_a_place_of_each_prompt(self, tmp_path: Path) -> None:
        path = tmp_path / "book.txt"
        paragraphs = [f"Paragraph {n} has a few words." for n in range(200)]
        path.write_text("\ufeff" + "\n\n".join(paragraphs) + "\n", encoding="utf-8")
        material = read_material(workload(50, context_path=str(path)))
        texts = [material.for_prompt(PROMPT, place) for place in range(30)]
        assert texts[0].split("\n\n") == paragraphs
        assert len({text[:40] for text in texts}) == 30
        for text in texts:
            assert sorted(text.split("\n\n")) == sorted(paragraphs), "all of it, once, cut between paragraphs"

    @given(
        pieces=st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Co"]), min_size=1).map(str.strip).filter(bool), min_size=1
        )
    )
    def test_nothing_is_lost_or_made_up(self, pieces: list[str]) -> None:
        """But what the prompt holds itself, here nothing."""
        for place in range(4):
            given = Material((tuple(pieces),)).for_prompt(Prompt("p", (Message("user", "\ue000"),)), place)
            assert sorted("".join(given.split())) == sorted("".join("".join(pieces).split()))

    def test_content_is_told_apart(self, tmp_path: Path) -> None:
        path = tmp_path / "book.txt"
        hashes = set()
        for text in ("one", "two"):
            path.write_text(text, encoding="utf-8")
            hashes.add(read_material(workload(50, context_path=str(path))).content_hash)
        hashes.add(read_material(workload(50)).content_hash)
        assert len(hashes) == 3

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "cannot be read (No such file or directory)"),
            (
                b"\xff\xfe\xfd",
                "cannot be read (not UTF-8 text)",
            ),
            (b" \n", "holds no text"),
        ],
    )
    def test_a_file_that_cannot_be_used_is_named(self, tmp_path: Path, content: bytes | None, said: str) -> None:
        path = tmp_path / "book.txt"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError) as raised:
            read_material(workload(50, context_path=str(path)))
        assert str(raised.value) == f"{path}: {said}; workload ours_ctx50 lengthens prompts with it"
