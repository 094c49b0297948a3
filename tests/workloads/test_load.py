"""Prompts are read from every format, and what cannot be read is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.compose import CONF, options
from pipeline.config import load_settings
from pipeline.records.cell import Workload, WorkloadFormat
from pipeline.records.failure import InputError
from pipeline.workloads.load import bundled_names, load_prompts
from pipeline.workloads.prompt import Message, Prompt

Write = Callable[[str | bytes], Path]

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
characters = st.characters(exclude_categories=["Cs"])
said = st.text(characters, min_size=1).filter(str.strip)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "prompts"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


def workload(form: WorkloadFormat, path: Path | str, **settings: object) -> Workload:
    return Workload(name="mine", format=form, path=str(path), **settings)  # type: ignore[arg-type]


def refusal(asked: Workload) -> str:
    with pytest.raises(InputError) as raised:
        load_prompts(asked)
    message = str(raised.value)
    assert "\n" not in message
    return message.replace(str(asked.path), "FILE")


def chat_line(name: object = "a", *turns: tuple[str, str]) -> str:
    messages = [{"role": role, "content": content} for role, content in turns or (("user", "Hi"),)]
    return json.dumps({"id": name, "messages": messages}) + "\n"


def question(name: object, category: str, *turns: str) -> str:
    return json.dumps({"question_id": name, "category": category, "turns": turns, "reference": ["x"]}) + "\n"


def conversation(name: str, *turns: tuple[str, str]) -> dict[str, object]:
    return {"id": name, "conversations": [{"from": speaker, "value": value} for speaker, value in turns]}


class TestChat:
    def test_each_line_is_a_prompt_with_its_history(self, write: Write) -> None:
        path = write(chat_line("a", ("system", "Be brief."), ("user", "Hi")) + "\n" + chat_line(7))
        assert load_prompts(workload("chat", path)).prompts == (
            Prompt("a", (Message("system", "Be brief."), Message("user", "Hi"))),
            Prompt("7", (Message("user", "Hi"),)),
        )

    @given(
        conversations=st.lists(
            st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), said), max_size=4),
            min_size=1,
            max_size=4,
        )
    )
    @same_folder
    def test_any_text_survives(self, write: Write, conversations: list[list[tuple[str, str]]]) -> None:
        lines = [chat_line(f"id {n}", *turns, ("user", "?")) for n, turns in enumerate(conversations)]
        read = load_prompts(workload("chat", write("".join(lines)))).prompts
        assert [
            [(message.role, message.content) for message in prompt.messages[:-1]] for prompt in read
        ] == conversations

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "FILE: holds no prompts"),
            ("\n \n", "FILE: holds no prompts"),
            (
                chat_line() + '{"id": "b", \n',
                "FILE:2: not valid JSON: Expecting property name enclosed in double quotes",
            ),
            (chat_line() + "\n[1]\n", "FILE:3: the line must be a JSON object, not a list"),
            ('{"messages": []}', "FILE:1: key 'id' is missing; found: 'messages'"),
            ('{"id": 1}', "FILE:1: key 'messages' is missing; found: 'id'"),
            ('{"id": true, "messages": []}', "FILE:1: 'id' must be a string or a whole number, not true or false"),
            ('{"id": "", "messages": []}', "FILE:1: 'id' is empty"),
            ('{"id": 1, "messages": {}}', "FILE:1: 'messages' must be a list, not an object"),
            ('{"id": 1, "messages": []}', "FILE:1: 'messages' is empty"),
            ('{"id": 1, "messages": ["Hi"]}', "FILE:1: messages[0] must be a JSON object, not a string"),
            (
                '{"id": 1, "messages": [{"role": "user"}]}',
                "FILE:1: messages[0]: key 'content' is missing; found: 'role'",
            ),
            ('{"id": 1, "messages": [{"content": "x"}]}', "FILE:1: messages[0]: key 'role' is missing"),
            (
                chat_line("a", ("human", "x")),
                "FILE:1: messages[0].role must be one of system, user, assistant, not 'human'",
            ),
            ('{"id": 1, "messages": [{"role": "user", "content": 3}]}', "FILE:1: messages[0].content must be a string"),
            (chat_line("a", ("user", "  ")), "FILE:1: messages[0].content is empty"),
            (
                chat_line("a", ("user", "x"), ("assistant", "y")),
                "FILE:1: the last message must be from the user, not the",
            ),
            (chat_line("a") + chat_line("b") + chat_line("a"), "FILE:3: id 'a' is used twice"),
            (b'{"id": "a"}\n\xff\n', "FILE:1: key 'messages' is missing"),
            (chat_line().encode() + b"\xff\n", "FILE:2: not UTF-8 text"),
            (chat_line("a", ("user", "\ud800")), "FILE:1: messages[0].content holds half of a surrogate pair"),
            ("[" * 100_000, "FILE:1: JSON that cannot be read: RecursionError"),
            ('{"id": ' + "1" * 5000 + "}", "FILE:1: JSON that cannot be read: ValueError"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, write: Write, content: str | bytes, message: str) -> None:
        assert refusal(workload("chat", write(content))).startswith(message)

    def test_a_byte_order_mark_and_carriage_returns_are_tolerated(self, write: Write) -> None:
        path = write(b"\xef\xbb\xbf" + chat_line("a").replace("\n", "\r\n").encode())
        assert [prompt.id for prompt in load_prompts(workload("chat", path)).prompts] == ["a"]


class TestSpecBench:
    def test_later_turns_await_the_answers_before_them(self, write: Write) -> None:
        path = write(question(81, "writing", "Write.", "Rewrite.", "Again."))
        first, second, third = load_prompts(workload("spec_bench", path)).prompts
        assert first == Prompt("81", (Message("user", "Write."),))
        assert second == Prompt(
            "81/2", (Message("user", "Write."), Message("assistant", ""), Message("user", "Rewrite.")), awaits=(1,)
        )
        assert (third.id, third.awaits, third.messages[-1]) == ("81/3", (1, 3), Message("user", "Again."))

    def test_first_turns_alone_await_nothing(self, write: Write) -> None:
        path = write(question(81, "writing", "Write.", "Rewrite.") + question(82, "qa", "Who?"))
        read = load_prompts(workload("spec_bench", path, turns="first")).prompts
        assert [(prompt.id, prompt.awaits) for prompt in read] == [("81", ()), ("82", ())]

    def test_categories_choose_questions(self, write: Write) -> None:
        path = write(question(1, "qa", "A?") + question(2, "math", "B?") + question(3, "rag", "C?"))
        read = load_prompts(workload("spec_bench", path, categories=("qa", "rag"))).prompts
        assert [prompt.id for prompt in read] == ["1", "3"]

    def test_an_unknown_category_lists_those_there_are(self, write: Write) -> None:
        path = write(question(1, "qa", "A?") + question(2, "math", "B?"))
        asked = workload("spec_bench", path, categories=("qa", "coding"))
        assert refusal(asked) == "FILE: no category 'coding'; available: 'math', 'qa'"

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "FILE: holds no prompts"),
            (question(1, "qa"), "FILE:1: 'turns' is empty"),
            (question(1, "qa", "A?", " "), "FILE:1: turns[1] is empty"),
            ('{"question_id": 1, "category": "qa", "turns": "A?"}', "FILE:1: 'turns' must be a list, not a string"),
            ('{"question_id": 1, "category": "qa", "turns": [2]}', "FILE:1: turns[0] must be a string, not a number"),
            ('{"question_id": 1, "turns": []}', "FILE:1: key 'category' is missing"),
            (
                '{"question_id": null, "category": "qa"}',
                "FILE:1: 'question_id' must be a string or a whole number, not null",
            ),
            (question(1, "qa", "A?") + question(1, "qa", "B?"), "FILE:2: id '1' is used twice"),
            (question(1, "qa", "A?") + "{", "FILE:2: not valid JSON"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, write: Write, content: str, message: str) -> None:
        assert refusal(workload("spec_bench", write(content))).startswith(message)


class TestShareGpt:
    def test_each_user_turn_follows_the_recorded_answers(self, write: Write) -> None:
        turns = (("system", "S"), ("human", "A?"), ("gpt", "a"), ("human", "B?"), ("gpt", "b"))
        read = load_prompts(workload("sharegpt", write(json.dumps([conversation("x", *turns)])))).prompts
        assert read == (
            Prompt("x", (Message("system", "S"), Message("user", "A?"))),
            Prompt(
                "x/2",
                (Message("system", "S"), Message("user", "A?"), Message("assistant", "a"), Message("user", "B?")),
            ),
        )

    def test_first_turns_alone(self, write: Write) -> None:
        path = write(json.dumps([conversation("x", ("human", "A?"), ("gpt", "a"), ("human", "B?"))]))
        assert [prompt.id for prompt in load_prompts(workload("sharegpt", path, turns="first")).prompts] == ["x"]

    def test_answers_before_the_first_question_are_dropped(self, write: Write) -> None:
        path = write(
            json.dumps([conversation("x", ("gpt", "..."), ("human", "A?")), conversation("y", ("gpt", "..."))])
        )
        assert load_prompts(workload("sharegpt", path)).prompts == (Prompt("x", (Message("user", "A?"),)),)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "FILE: not valid JSON: Expecting value at column 1"),
            ("[]", "FILE: holds no prompts"),
            ("{}", "FILE: the file must be a list, not an object"),
            ("[\n{]", "FILE: not valid JSON: Expecting property name enclosed in double quotes at line 2 column 2"),
            ("[{}]", "FILE: entry 0: key 'id' is missing; found: none"),
            ('[{"id": "x", "conversations": 3}]', "FILE: entry 0: 'conversations' must be a list, not a number"),
            ('[{"id": "x", "conversations": [3]}]', "FILE: entry 0: conversations[0] must be a JSON object"),
            (
                json.dumps([conversation("x", ("alien", "?"))]),
                "FILE: entry 0: conversations[0].from must be one of human",
            ),
            (
                '[{"id": "x", "conversations": [{"from": ["human"], "value": "?"}]}]',
                "FILE: entry 0: conversations[0].from",
            ),
            (json.dumps([conversation("x", ("human", ""))]), "FILE: entry 0: conversations[0].value is empty"),
            (json.dumps([conversation("x", ("human", "A"))] * 2), "FILE: entry 1: id 'x' is used twice"),
            (b"[\xff]", "FILE: not UTF-8 text"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_entry(self, write: Write, content: str | bytes, message: str) -> None:
        assert refusal(workload("sharegpt", write(content))).startswith(message)


class TestText:
    def test_each_paragraph_is_a_user_message(self, write: Write) -> None:
        path = write("\n\nFirst line\n  second line\n \n\nAnother\r\n")
        assert load_prompts(workload("text", path)).prompts == (
            Prompt("line-3", (Message("user", "First line\n  second line"),)),
            Prompt("line-7", (Message("user", "Another"),)),
        )

    @given(paragraphs=st.lists(said.map(lambda text: " ".join(text.split())).filter(bool), min_size=1, max_size=5))
    @same_folder
    def test_any_paragraphs_survive(self, write: Write, paragraphs: list[str]) -> None:
        read = load_prompts(workload("text", write("\n\n".join(paragraphs)))).prompts
        assert [prompt.messages[0].content for prompt in read] == paragraphs

    def test_a_blank_file_is_refused(self, write: Write) -> None:
        assert refusal(workload("text", write("\n\n"))) == "FILE: holds no prompts"


class TestAnyFile:
    FORMATS = ("chat", "spec_bench", "sharegpt", "text")

    @given(content=st.binary(max_size=200))
    @pytest.mark.parametrize("form", FORMATS)
    @same_folder
    def test_garbage_is_refused_or_read_but_never_crashes(
        self, write: Write, form: WorkloadFormat, content: bytes
    ) -> None:
        with suppress(InputError):
            assert load_prompts(workload(form, write(content))).prompts

    @given(
        content=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "id",
                            "messages",
                            "role",
                            "content",
                            "question_id",
                            "category",
                            "turns",
                            "conversations",
                            "from",
                            "value",
                        ]
                    ),
                    inner | st.sampled_from(["user", "human", "gpt", "assistant"]),
                    max_size=4,
                )
            ),
            max_leaves=15,
        )
    )
    @pytest.mark.parametrize("form", FORMATS)
    @same_folder
    def test_json_of_any_shape_never_crashes(self, write: Write, form: WorkloadFormat, content: object) -> None:
        with suppress(InputError):
            assert load_prompts(workload(form, write(json.dumps(content)))).prompts

    @pytest.mark.parametrize("form", FORMATS)
    def test_a_missing_file_a_folder_and_no_path_are_refused(self, tmp_path: Path, form: WorkloadFormat) -> None:
        assert refusal(workload(form, tmp_path / "nowhere")).startswith(
            "FILE: cannot be read (No such file or directory)"
        )
        assert refusal(workload(form, tmp_path)).startswith("FILE: cannot be read (Is a directory)")
        with pytest.raises(InputError, match=f"workload mine: format {form} needs the path of a file"):
            load_prompts(Workload(name="mine", format=form))


class TestContentHash:
    def test_it_is_of_what_is_said_not_of_how_it_is_written(self, write: Write) -> None:
        line = chat_line("a", ("user", "é"))
        escaped = load_prompts(workload("chat", write(line)))
        plain = load_prompts(
            workload("chat", write("\n" + json.dumps(json.loads(line), ensure_ascii=False, indent=None)))
        )
        assert escaped == plain
        assert len(escaped.content_hash) == 64

    @pytest.mark.parametrize(
        "other",
        [
            chat_line("a", ("user", "Ho")),
            chat_line("b", ("user", "Hi")),
            chat_line("a", ("system", "Hi"), ("user", "Hi")),
            chat_line("a") + chat_line("b"),
        ],
    )
    def test_it_changes_with_any_prompt(self, write: Write, other: str) -> None:
        first = load_prompts(workload("chat", write(chat_line("a"))))
        assert load_prompts(workload("chat", write(other))).content_hash != first.content_hash

    def test_choosing_categories_changes_it(self, write: Write) -> None:
        path = write(question(1, "qa", "A?") + question(2, "math", "B?"))
        every = load_prompts(workload("spec_bench", path))
        assert load_prompts(workload("spec_bench", path, categories=("qa",))).content_hash != every.content_hash


class TestBundled:
    @pytest.mark.parametrize("name", bundled_names())
    def test_every_set_is_read(self, name: str) -> None:
        prompts = load_prompts(Workload(name=name)).prompts
        assert all(prompt.messages[-1].role == "user" and not prompt.awaits for prompt in prompts)

    def test_every_bundled_workload_of_the_configuration_has_its_prompts(self) -> None:
        names = [name for name in options(CONF / "workload") if name not in ("spec_bench", "sharegpt", "text")]
        configured = load_settings([f"workload=[{','.join(names)}]"]).workloads
        assert {workload.path or workload.name for workload in configured} <= set(bundled_names())

    def test_path_names_another_set(self) -> None:
        name = bundled_names()[0]
        assert load_prompts(Workload(name="mine", path=name)) == load_prompts(Workload(name=name))

    @pytest.mark.parametrize("name", ["nothing", "../prompts/chat", "chat.jsonl"])
    def test_an_unknown_set_lists_those_there_are(self, name: str) -> None:
        with pytest.raises(InputError) as raised:
            load_prompts(Workload(name="mine", path=name))
        assert f"no bundled prompts {name!r}; available: {', '.join(bundled_names())}" in str(raised.value)
