"""Prompts become token ids with exactly the special tokens that the model wants."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pipeline.records.failure import InputError
from pipeline.records.target import Target
from pipeline.workloads.prompt import Message, Prompt
from pipeline.workloads.render import answered, read_template, render

WORDS = [
    "<s>",
    "</s>",
    "<unk>",
    "[user]",
    "[assistant]",
    "[system]",
    "[thinking]",
    "hello",
    "world",
    "again",
    "be",
    "brief",
]
IDS = {word: index for index, word in enumerate(WORDS)}
TEMPLATE = (
    "{{ bos_token }} {% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{% if thinking %} [thinking]{% endif %}"
)
PROMPT = Prompt("p", (Message("system", "be brief"), Message("user", "hello world")))


def ids(text: str) -> tuple[int, ...]:
    return tuple(IDS[word] for word in text.split())


def tokenizer(
    template: str | None = TEMPLATE, *, adds: str = "<s> $A", bos: str | None = "<s>"
) -> PreTrainedTokenizerFast:
    """Words for tokens; like Llama's, it adds a BOS to every text encoded with special tokens."""
    words = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single=adds, special_tokens=[("<s>", IDS["<s>"]), ("</s>", IDS["</s>"])]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=words, bos_token=bos, eos_token="</s>", unk_token="<unk>")
    fast.chat_template = template
    return fast


def target(**settings: object) -> Target:
    return Target(name="tiny", source="tiny", **settings)  # type: ignore[arg-type]


def check_that_bos_stands_once() -> None:
    tokens = render(PROMPT, target(), tokenizer())
    count = tokens.count(IDS["<s>"])
    assert (count, tokens[0]) == (1, IDS["<s>"]), f"{count} BOS"


class TestModelTemplate:
    def test_it_ends_where_the_answer_begins(self) -> None:
        expected = ids("<s> [system] be brief [user] hello world [assistant]")
        assert render(PROMPT, target(), tokenizer()) == expected

    def test_a_template_with_a_bos_gets_no_second_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Case 17. Broken: the template's text is encoded as any other, to which the tokenizer adds a BOS."""
        check_that_bos_stands_once()
        encode = PreTrainedTokenizerFast.encode
        monkeypatch.setattr(PreTrainedTokenizerFast, "encode", lambda self, text, **_: encode(self, text))
        with pytest.raises(AssertionError, match="2 BOS"):
            check_that_bos_stands_once()

    def test_a_template_without_a_bos_gets_none(self) -> None:
        plain = tokenizer(TEMPLATE.removeprefix("{{ bos_token }} "))
        assert render(PROMPT, target(), plain) == ids("[system] be brief [user] hello world [assistant]")

    @given(st.lists(st.sampled_from(["hello", "world", "again"]), min_size=1).map(" ".join))
    def test_it_equals_what_transformers_itself_makes_of_it(self, content: str) -> None:
        words = tokenizer()
        theirs = words.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        assert list(render(Prompt("p", (Message("user", content),)), target(), words)) == theirs["input_ids"]

    def test_its_arguments_reach_the_template(self) -> None:
        assert IDS["[thinking]"] not in render(PROMPT, target(), tokenizer())
        assert render(PROMPT, target(chat_template_args={"thinking": True}), tokenizer())[-1] == IDS["[thinking]"]

    def test_a_tokenizer_without_one_is_refused_with_what_may_be_chosen(self) -> None:
        with pytest.raises(InputError) as raised:
            render(PROMPT, target(), tokenizer(None))
        assert str(raised.value) == (
            "target tiny: its tokenizer has no chat template; set targets.tiny.chat_template, which may be"
            " 'model' (the tokenizer's own), 'plain' (no template) or the path of a Jinja file"
        )

    @pytest.mark.parametrize(
        "template",
        ["{{ raise_exception('no system\nrole') }}", "{% if %}", "{{ 1 + 'x' }}", "{{ messages[9].content + 1 }}"],
    )
    def test_a_template_that_fails_is_named_with_the_prompt(self, template: str) -> None:
        with pytest.raises(InputError, match=r"^target tiny: the chat template cannot render prompt 'p': [^\n]+$"):
            render(PROMPT, target(), tokenizer(template))


class TestPlain:
    def test_contents_are_joined_with_one_bos_in_front(self) -> None:
        assert render(PROMPT, target(chat_template="plain"), tokenizer(None)) == ids("<s> be brief hello world")

    def test_it_leaves_the_models_template_alone(self) -> None:
        assert IDS["[user]"] not in render(PROMPT, target(chat_template="plain"), tokenizer())

    def test_a_text_that_begins_with_bos_gets_no_second_one(self) -> None:
        prompt = Prompt("p", (Message("user", "<s> hello"),))
        assert render(prompt, target(chat_template="plain"), tokenizer()) == ids("<s> hello")

    def test_a_tokenizer_that_adds_none_gets_none(self) -> None:
        assert render(PROMPT, target(chat_template="plain"), tokenizer(adds="$A")) == ids("be brief hello world")
        assert render(PROMPT, target(chat_template="plain"), tokenizer(adds="$A", bos=None)) == ids(
            "be brief hello world"
        )

    def test_a_tokenizer_that_also_ends_texts_does_not_end_the_prompt(self) -> None:
        words = tokenizer(adds="<s> $A </s>")
        assert render(PROMPT, target(chat_template="plain"), words) == ids("<s> be brief hello world")

    def test_a_prompt_of_no_tokens_is_refused(self) -> None:
        with pytest.raises(InputError, match="target tiny: prompt 'p' has no tokens"):
            render(Prompt("p", (Message("user", " "),)), target(chat_template="plain"), tokenizer(adds="$A"))


class TestJinjaFile:
    def test_it_replaces_the_models_template(self, tmp_path: Path) -> None:
        path = tmp_path / "chat.jinja"
        path.write_text("{% for m in messages %}{{ m.content }} {% endfor %}[assistant]")
        asked = target(chat_template=str(path))
        assert render(PROMPT, asked, tokenizer()) == ids("be brief hello world [assistant]")
        assert render(PROMPT, asked, tokenizer(None)) == ids("be brief hello world [assistant]")

    @pytest.mark.parametrize("missing", ["nowhere.jinja", "modle", ""])
    def test_one_that_cannot_be_read_is_refused_before_any_model_is_loaded(
        self, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError) as raised:
            read_template(target(chat_template=missing))
        assert str(raised.value).startswith(f"target tiny: chat_template {missing!r} cannot be read (")
        assert "it may be 'model'" in str(raised.value)


class TestAnswered:
    LATER = Prompt(
        "q/3",
        tuple(Message("user" if n % 2 == 0 else "assistant", "" if n % 2 else f"hello {n}") for n in range(5)),
        awaits=(1, 3),
    )

    def test_answers_are_filled_in_one_by_one(self) -> None:
        once = answered(self.LATER, 1, "world")
        assert once.awaits == (3,)
        twice = answered(once, 3, "again")
        assert twice.awaits == ()
        assert [message.content for message in twice.messages] == ["hello 0", "world", "hello 2", "again", "hello 4"]
        assert [message.role for message in twice.messages] == [message.role for message in self.LATER.messages]

    def test_what_is_not_awaited_cannot_be_answered(self) -> None:
        with pytest.raises(ValueError, match="does not await message 2"):
            answered(self.LATER, 2, "world")

    def test_a_prompt_that_awaits_answers_cannot_be_rendered(self) -> None:
        with pytest.raises(ValueError, match="still awaits the answers"):
            render(self.LATER, target(), tokenizer())
