"""A step in front of the model, which goes by the messages alone."""

import asyncio
import copy
import pickle

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableField

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.langchain import ContextPilotRewriter

TEXTS = {
    "1": "A cargo bike costs 39 euros a day, and 150 for a whole week, insurance included.",
    "2": "The box of a cargo bike takes 80 kg, children or shopping, never more than that.",
    "4": "Bring the bike back before eight in the evening, or the next day is charged too.",
    "5": "100 % {sure}: {{braces}} and %s signs cost nothing {0} and stay as they are {question}.",
}
BLOCKS = {id_: f"[CB_{id_}] {text}" for id_, text in TEXTS.items()}
REFERENCE = "Please refer to [CB_{}] in the previous conversation."


def turn(ids, question="What now?"):
    return HumanMessage("\n\n".join([*(BLOCKS[id_] for id_ in ids), question]))


HISTORY = [SystemMessage("Be terse."), turn("124"), AIMessage("39 euros.")]


@pytest.fixture
def rewriter():
    return ContextPilotRewriter()


class Listening(GenericFakeChatModel):
    heard: list

    def _generate(self, messages, *args, **kwargs):
        self.heard.append(messages)
        return super()._generate(messages, *args, **kwargs)


@pytest.fixture
def model():
    return Listening(messages=iter([AIMessage(f"answer {n}") for n in range(20)]), heard=[])


class TestWhatGoesOut:
    def test_what_stands_before_gives_way_in_place(self, rewriter):
        *before, last = rewriter.invoke([*HISTORY, turn("152")])
        assert before == HISTORY
        assert last.content == "\n\n".join(
            [REFERENCE.format("1"), BLOCKS["5"], REFERENCE.format("2"), "What now?"]
        )

    def test_a_history_of_bare_questions_and_answers(self, rewriter):
        rewriter.invoke([*HISTORY])
        bare = [HISTORY[0], HumanMessage("What now?"), AIMessage("39 euros.")]
        assert rewriter.invoke([*bare, turn("152")])[-1] == turn("152")

    def test_what_does_not_change_is_the_very_object(self, rewriter):
        messages = [*HISTORY, HumanMessage("Thanks."), AIMessage("Bye."), turn("1")]
        sent = rewriter.invoke(messages)
        assert all(before is after for before, after in zip(messages[:-1], sent[:-1], strict=True))
        assert sent[-1] is not messages[-1]

    def test_copies_keep_all_but_the_text(self, rewriter):
        artifact = [object()]
        last = ToolMessage(
            [{"type": "text", "text": BLOCKS["1"], "cache_control": {"type": "ephemeral"}}],
            tool_call_id="1",
            id="m4",
            name="read",
            artifact=artifact,
            additional_kwargs={"kept": True},
        )
        call = AIMessage("", tool_calls=[{"name": "read", "args": {}, "id": "1"}])
        sent = rewriter.invoke([*HISTORY, call, last])[-1]
        assert TEXTS["1"] not in sent.content[0]["text"]
        assert sent.content[0]["cache_control"] == {"type": "ephemeral"}
        assert (sent.id, sent.name, sent.tool_call_id) == ("m4", "read", "1")
        assert (sent.artifact, sent.additional_kwargs) == (artifact, {"kept": True})

    def test_inputs_stay_as_they_are(self, rewriter):
        messages = [*HISTORY, turn("152")]
        before = copy.deepcopy(messages)
        rewriter.invoke(messages)
        assert messages == before

    def test_each_turn_starts_with_what_was_sent_before(self, rewriter):
        messages = [HISTORY[0]]
        before = []
        for number, ids in enumerate(["124", "152", "45", "5421"]):
            messages.append(turn(ids, f"Question {number}?"))
            sent = rewriter.invoke(messages)
            assert sent[: len(before)] == before
            before = sent
            messages.append(AIMessage(f"Answer {number}."))

    def test_twice_is_once(self, rewriter):
        once = rewriter.invoke([*HISTORY, turn("152")])
        assert rewriter.invoke(once) == ContextPilotRewriter().invoke(once) == once

    def test_first_turns_are_aligned(self, rewriter):
        # Where the last block ends is not known: the question stands behind it.
        rewriter.invoke([turn("124")])
        (sent,) = rewriter.invoke([turn("2145")])
        assert sent.content.startswith(f"{BLOCKS['1']}\n\n{BLOCKS['2']}\n\n{BLOCKS['4']}\n\n")
        assert rewriter.pilot.outcomes[Outcome.ALIGNED] == 1


class TestNothingLost:
    @pytest.mark.parametrize("cut", [slice(1), slice(0, 0), slice(2, None)])
    def test_a_history_that_was_cut(self, rewriter, cut):
        rewriter.invoke([*HISTORY, turn("152")])
        sent = rewriter.invoke([*HISTORY[cut], turn("152")])
        text = "\n".join(message.content for message in sent)
        assert all(BLOCKS[id_] in text for id_ in "152")

    def test_a_restart_changes_nothing(self, rewriter):
        messages = [*HISTORY, turn("152")]
        assert (
            ContextPilotRewriter().invoke(messages) == rewriter.invoke(messages) == rewriter.invoke(messages)
        )

    def test_two_sessions_with_the_same_beginning(self, rewriter):
        one, other = [*HISTORY, turn("15")], [*HISTORY, turn("25")]
        first = rewriter.invoke(one)
        assert rewriter.invoke(other) == ContextPilotRewriter().invoke(other)
        assert rewriter.invoke(one) == first

    def test_when_planning_fails_the_original_goes_out(self):
        def fails(text):
            raise RuntimeError("no tokenizer")

        messages = [*HISTORY, turn("152")]
        assert (
            ContextPilotRewriter(pilot=ContextPilot(token_counter=fails, on_error="ignore")).invoke(messages)
            == messages
        )


class TestWhatItTakes:
    @pytest.mark.parametrize(
        "given",
        [
            ChatPromptValue(messages=[HumanMessage("text")]),
            [HumanMessage("text")],
            (HumanMessage("text"),),
            [("human", "text")],
            [{"role": "user", "content": "text"}],
            ["text"],
            "text",
        ],
        ids=["prompt value", "messages", "tuple", "pairs", "dicts", "strings", "string"],
    )
    def test_what_a_model_takes(self, rewriter, given):
        assert rewriter.invoke(given) == [HumanMessage("text")]

    def test_nothing(self, rewriter):
        assert rewriter.invoke([]) == []

    @pytest.mark.parametrize("given", [None, 1, HumanMessage("text")])
    def test_anything_else(self, rewriter, given):
        with pytest.raises(TypeError, match="prompt value, messages or a str, not"):
            rewriter.invoke(given)
        with pytest.raises(TypeError, match="prompt value, messages or a str, not"):
            asyncio.run(rewriter.ainvoke(given))


PROMPT = ChatPromptTemplate.from_messages(
    [("system", "100 % {{terse}}."), MessagesPlaceholder("history"), ("human", "{context}\n\n{question}")]
)


class TestInAChain:
    @pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"])
    async def test_every_way(self, rewriter, model, way):
        chain = PROMPT | rewriter | model | StrOutputParser()
        given = {
            "history": HISTORY[1:],
            "context": "\n\n".join(BLOCKS[id_] for id_ in "152"),
            "question": "{How} much %s?",
        }
        if way == "stream":
            answer = "".join(chain.stream(given))
        elif way == "astream":
            answer = "".join([chunk async for chunk in chain.astream(given)])
        elif way == "ainvoke":
            answer = await chain.ainvoke(given)
        elif way == "batch":
            (answer,) = chain.batch([given])
        elif way == "abatch":
            (answer,) = await chain.abatch([given])
        else:
            answer = chain.invoke(given)
        assert answer == "answer 0"
        ((system, *history, last),) = model.heard
        assert system.content == "100 % {terse}."
        assert history == HISTORY[1:]
        assert last.content.split("\n\n") == [
            REFERENCE.format("1"),
            BLOCKS["5"],
            REFERENCE.format("2"),
            "{How} much %s?",
        ]

    async def test_a_batch_is_rewritten_in_its_order(self, rewriter):
        batch = [[turn(ids)] for ids in ("124", "2145", "4215", "4125", "512")]
        one_by_one = ContextPilotRewriter()
        expected = [one_by_one.invoke(messages) for messages in batch]
        assert rewriter.batch(batch) == await ContextPilotRewriter().abatch(batch) == expected

    async def test_a_bad_input_of_a_batch(self, rewriter):
        for results in (
            rewriter.batch(["one", 2, "three"], return_exceptions=True),
            await rewriter.abatch(["one", 2, "three"], return_exceptions=True),
        ):
            assert [type(result) for result in results] == [list, TypeError, list]
        with pytest.raises(TypeError, match="not int"):
            rewriter.batch(["one", 2])

    def test_a_retry(self, rewriter, model):
        heard = []

        def fails_first(messages):
            heard.append(messages)
            if len(heard) == 1:
                raise ConnectionError("engine gone")
            return messages

        chain = (rewriter | fails_first | model).with_retry(wait_exponential_jitter=False)
        chain.invoke([*HISTORY, turn("152")])
        assert heard[0] == heard[1] == rewriter.invoke([*HISTORY, turn("152")])

    def test_tenants(self, rewriter):
        configurable = rewriter.configurable_fields(tenant=ConfigurableField(id="tenant"))
        a, b = ({"configurable": {"tenant": name}} for name in "ab")
        configurable.invoke([turn("124")], a)
        assert configurable.invoke([turn("2145")], b) == [turn("2145")]
        assert configurable.invoke([turn("2145")], a) != [turn("2145")]


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
def test_settings_travel():
    rewriter = ContextPilotRewriter(
        pilot=ContextPilot(capacity=123), endpoint="e", model="m", tenant="t", preamble="p"
    )
    loaded = loads(
        dumps(rewriter),
        allowed_objects=[ContextPilotRewriter],
        valid_namespaces=["contextpilot_integrations"],
    )
    for twin in (loaded, pickle.loads(pickle.dumps(rewriter))):
        assert twin.namespace == rewriter.namespace
        assert twin.pilot is not rewriter.pilot
        assert len(twin.invoke([*HISTORY, turn("152")])) == 4
