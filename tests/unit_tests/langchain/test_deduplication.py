"""A conversation sends a text once, as long as the model can see it."""

import logging
import pickle
from operator import itemgetter

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListLLM, GenericFakeChatModel
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.langchain import (
    ContextPilotCallbackHandler,
    ContextPilotRetriever,
    format_context,
    format_documents,
    plan_metadata,
)
from contextpilot_integrations.langchain import retriever as retriever_module

TEXTS = {
    "1": "A cargo bike costs 39 euros a day, and 150 for a whole week, insurance included.",
    "2": "The box of a cargo bike takes 80 kg, children or shopping, never more than that.",
    "4": "Bring the bike back before eight in the evening, or the next day is charged too.",
    "5": "Helmets come with every bike and are to be brought back clean and dry, please.",
    "8": "100 % {sure}: {{braces}} and %s signs cost nothing {0} and stay as they are {question}.",
}
BLOCKS = {id_: f"[CB_{id_}] {text}" for id_, text in TEXTS.items()}
REFERENCE = "Please refer to [CB_{}] in the previous conversation."


class Finds(BaseRetriever):
    """Finds the documents whose ids the question names, in that order."""

    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(TEXTS[id_], id=id_, metadata={"page": 7}) for id_ in query if id_ in TEXTS]

    async def _aget_relevant_documents(self, query, *, run_manager):
        return self._get_relevant_documents(query, run_manager=run_manager)


class Listening(GenericFakeChatModel):
    heard: list

    def _generate(self, messages, *args, **kwargs):
        self.heard.append(messages)
        return super()._generate(messages, *args, **kwargs)


@pytest.fixture
def model():
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    answers = (
        AIMessage(f"answer {n}", usage_metadata={**usage, "input_token_details": {"cache_read": n}})
        for n in range(100)
    )
    return Listening(messages=answers, heard=[])


@pytest.fixture
def handler():
    return ContextPilotCallbackHandler()


@pytest.fixture(autouse=True)
def warn_anew():
    retriever_module._warn_once.cache_clear()


PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Be 100 % terse {{really}}."),
        MessagesPlaceholder("history"),
        ("human", "{context}\n\n{question}"),
    ]
)


@pytest.fixture
def retriever():
    return ContextPilotRetriever(retriever=Finds(), deduplicate="session")


def conversation(retriever, model, prompt=PROMPT):
    """A chain whose result tells what was sent, besides the answer."""
    return (
        RunnablePassthrough.assign(documents=itemgetter("question") | retriever)
        .assign(context=itemgetter("documents") | format_documents)
        .assign(sent=prompt)
        .assign(answer=itemgetter("sent") | model)
    )


class Chat:
    """One conversation, and the history that its application keeps."""

    def __init__(self, chain, handler, thread="1", way="invoke", keep="as sent"):
        self.chain, self.way, self.keep, self.history = chain, way, keep, []
        self.config = {"callbacks": [handler], "configurable": {"thread_id": thread}}

    async def ask(self, question):
        """Return the last message that the model got."""
        turn = await self.call({"question": question, "history": self.history})
        if self.keep == "as sent":
            self.history = [*turn["sent"].to_messages()[1:], turn["answer"]]
        else:
            self.history = [*self.history, HumanMessage(question), turn["answer"]]
        self.documents = turn["documents"]
        return turn["sent"].to_messages()[-1].content

    async def call(self, given):
        if self.way == "ainvoke":
            return await self.chain.ainvoke(given, self.config)
        if self.way == "stream":
            chunks = list(self.chain.stream(given, self.config))
        elif self.way == "astream":
            chunks = [chunk async for chunk in self.chain.astream(given, self.config)]
        elif self.way == "batch":
            return self.chain.batch([given], self.config)[0]
        elif self.way == "abatch":
            return (await self.chain.abatch([given], self.config))[0]
        else:
            return self.chain.invoke(given, self.config)
        turn = {}
        for chunk in chunks:
            for key, value in chunk.items():
                turn[key] = turn[key] + value if key == "answer" and key in turn else value
        return turn


WAYS = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"]


def context(*parts):
    """Blocks by their id, other text as it is."""
    return "\n\n".join(BLOCKS.get(part, part) for part in parts)


def prompt(*parts):
    """A turn's context, and the question."""
    return f"{context(*parts[:-1])}\n\n{parts[-1]}"


@pytest.mark.parametrize("way", WAYS)
class TestTwoTurns:
    async def test_the_history_holds_the_turns_as_they_were_sent(self, retriever, model, handler, way):
        chat = Chat(conversation(retriever, model), handler, way=way)
        assert await chat.ask("124") == prompt("1", "2", "4", "124")
        second = await chat.ask("152")
        assert second == prompt(REFERENCE.format("1"), "5", REFERENCE.format("2"), "152")
        # What was sent before stands as it was: the prefix.
        assert model.heard[1][: len(model.heard[0])] == model.heard[0]
        assert handler.lost_texts == 0

    async def test_the_history_holds_bare_questions_and_answers(self, retriever, model, handler, way):
        chat = Chat(conversation(retriever, model), handler, way=way, keep="questions and answers")
        assert await chat.ask("124") == prompt("1", "2", "4", "124")
        second = await chat.ask("152")
        assert sorted(second.split("\n\n")[:3]) == sorted(BLOCKS[id_] for id_ in "152")
        assert REFERENCE.format("1") not in second


@pytest.fixture
def chat(retriever, model, handler):
    return Chat(conversation(retriever, model), handler)


class TestWhatComesOut:
    async def test_documents_for_citations(self, chat):
        await chat.ask("124")
        await chat.ask("152")
        assert [(d.id, d.page_content, d.metadata["page"]) for d in chat.documents] == [
            (id_, TEXTS[id_], 7) for id_ in "152"
        ]
        plans = [plan_metadata(document) for document in chat.documents]
        assert [plan["shown_as"] for plan in plans] == [REFERENCE.format("1"), None, REFERENCE.format("2")]
        assert [(plan["rank"], plan["position"], plan["label"]) for plan in plans] == [
            (0, 0, "1"),
            (1, 1, "5"),
            (2, 2, "2"),
        ]

    async def test_the_order_of_relevance_where_turns_of_before_stand_in_front(self, chat, retriever):
        await chat.ask("124")
        await chat.ask("8421")
        assert [document.id for document in chat.documents] == ["8", "4", "2", "1"]
        assert "priority order" not in format_documents.invoke(chat.documents)
        # They are no prefix of a later prompt, so the index does not take them for one.
        assert sum(retriever.pilot.outcomes.values()) == 1

    async def test_later_turns(self, chat):
        for question in ("12", "24", "421"):
            last = await chat.ask(question)
        assert last == context(*map(REFERENCE.format, "421"), "421")

    async def test_nothing_is_found(self, chat):
        await chat.ask("124")
        assert await chat.ask("nothing") == "\n\nnothing"
        assert await chat.ask("1") == prompt(REFERENCE.format("1"), "1")

    async def test_a_document_found_twice_is_shown_once(self, chat):
        await chat.ask("11")
        assert await chat.ask("1515") == prompt(REFERENCE.format("1"), "5", "1515")
        assert [plan_metadata(document)["rank"] for document in chat.documents] == [0, 1]

    async def test_braces_and_percent_signs(self, chat):
        assert await chat.ask("8 {x} 7 %s") == prompt("8", "8 {x} 7 %s")
        assert await chat.ask("85") == prompt(REFERENCE.format("8"), "5", "85")

    async def test_wording(self, model, handler):
        pilot = ContextPilot(location_template="(see {source} {above})")
        retriever = ContextPilotRetriever(retriever=Finds(), deduplicate="session", pilot=pilot)
        chat = Chat(conversation(retriever, model), handler)
        await chat.ask("1")
        assert await chat.ask("1") == prompt("(see [CB_1] {above})", "1")
        await chat.ask("1")
        assert handler.lost_texts == 0

    async def test_a_text_shorter_than_the_annotation_is_sent(self, chat, monkeypatch):
        monkeypatch.setitem(TEXTS, "1", "No.")
        await chat.ask("12")
        assert await chat.ask("12") == f"[CB_1] No.\n\n{REFERENCE.format('2')}\n\n12"

    @pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
    async def test_it_travels_with_the_documents(self, chat):
        await chat.ask("124")
        await chat.ask("152")
        expected = context(REFERENCE.format("1"), "5", REFERENCE.format("2"))
        for travelled in (
            pickle.loads(pickle.dumps(chat.documents)),
            loads(dumps(chat.documents), allowed_objects=[Document]),
        ):
            assert format_context.invoke(travelled) == format_documents.invoke(travelled) == expected

    async def test_a_step_that_changes_a_text_sends_it(self, chat):
        await chat.ask("124")
        await chat.ask("12")
        chat.documents[0].page_content = "Another text."
        assert format_documents.invoke(chat.documents) == context(
            "[CB_1] Another text.", REFERENCE.format("2")
        )


class TestNothingLost:
    """What the model cannot see is sent, whatever the session's id says."""

    async def test_the_first_turn_was_reordered(self, retriever, model, handler):
        await Chat(conversation(retriever, model), handler, thread="other").ask("21")
        chat = Chat(conversation(retriever, model), handler)
        first = await chat.ask("12")
        assert first.startswith(context("2", "1", "Please read the context"))
        assert await chat.ask("12") == prompt(REFERENCE.format("1"), REFERENCE.format("2"), "12")

    @pytest.mark.parametrize("cut", [slice(2, None), slice(0, 0)], ids=["turn 1 is gone", "all is gone"])
    async def test_the_caller_trims(self, chat, handler, cut):
        await chat.ask("12")
        await chat.ask("5")
        chat.history = chat.history[cut]
        last = await chat.ask("15")
        assert BLOCKS["1"] in last
        assert (BLOCKS["5"] in last) == (cut == slice(0, 0))
        assert handler.lost_texts == 0

    async def test_the_middle_is_gone(self, chat):
        for question in ("1", "2", "5"):
            await chat.ask(question)
        del chat.history[2:4]
        assert await chat.ask("125") == prompt(REFERENCE.format("1"), "2", REFERENCE.format("5"), "125")

    async def test_a_summary_took_the_place_of_the_turns(self, chat):
        await chat.ask("12")
        chat.history = [HumanMessage("They spoke about [CB_1] and [CB_2]."), AIMessage("Go on.")]
        assert sorted((await chat.ask("12")).split("\n\n")) == sorted([BLOCKS["1"], BLOCKS["2"], "12"])

    async def test_a_message_was_edited(self, chat):
        await chat.ask("12")
        chat.history[0] = HumanMessage(chat.history[0].content.replace("39 euros", "49 euros"))
        assert await chat.ask("12") == prompt("1", REFERENCE.format("2"), "12")

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_step_in_front_of_the_retriever_trims(self, retriever, model, handler, way):
        def trimmed(given):
            return {**given, "history": given["history"][-2:]}

        chat = Chat(RunnableLambda(trimmed) | conversation(retriever, model), handler, way=way)
        for question in ("1", "5", "2"):
            await chat.ask(question)
        assert await chat.ask("12") == prompt("1", REFERENCE.format("2"), "12")
        assert handler.lost_texts == 0

    @pytest.mark.parametrize("way", WAYS)
    async def test_a_step_behind_the_retriever_trims(self, retriever, model, handler, way, caplog):
        def trimmed(given):
            return {**given, "history": given["history"][-2:]}

        context_ = RunnablePassthrough.assign(documents=itemgetter("question") | retriever)
        formatted = context_.assign(context=itemgetter("documents") | format_documents)
        prompted = formatted | trimmed | RunnablePassthrough.assign(sent=PROMPT)
        chat = Chat(prompted.assign(answer=itemgetter("sent") | model), handler, way=way)
        everything = []
        for question in ("1", "5"):
            await chat.ask(question)
            everything = [*everything, *chat.history[-2:]]
            chat.history = everything
        with caplog.at_level(logging.WARNING):
            assert await chat.ask("15") == prompt(REFERENCE.format("1"), REFERENCE.format("5"), "15")
            everything = [*everything, *chat.history[-2:]]
            assert handler.lost_texts == 1
            for _ in range(2):
                chat.history = everything
                assert BLOCKS["1"] in await chat.ask("12")
        (record,) = caplog.records
        assert "ContextPilotRewriter" in record.message
        assert "refers to 1 block(s)" in record.message
        assert "cargo" not in record.message

    async def test_an_annotation_outlives_its_text(self, chat, handler, caplog):
        for question in ("1", "1", "2"):
            await chat.ask(question)
        chat.history = chat.history[2:]
        with caplog.at_level(logging.WARNING):
            await chat.ask("5")
        assert handler.lost_texts == len(caplog.records) == 1
        assert await chat.ask("2") == prompt("2", "2")

    async def test_the_same_question_is_sent_twice(self, chat):
        await chat.ask("124")
        first_turn = chat.history
        second = await chat.ask("152")
        chat.history = first_turn
        assert await chat.ask("152") == second
        chat.history = []
        assert sorted((await chat.ask("124")).split("\n\n")[:3]) == sorted(BLOCKS[id_] for id_ in "124")

    @pytest.mark.parametrize("way", ["invoke", "ainvoke"])
    async def test_a_retry_inside_the_chain(self, retriever, model, handler, way):
        attempts = []

        def fails_first(given):
            attempts.append(given)
            if len(attempts) % 2:
                raise ConnectionError("engine gone")
            return given

        flaky = (RunnableLambda(fails_first) | model).with_retry(wait_exponential_jitter=False)
        chat = Chat(conversation(retriever.with_retry(), flaky), handler, way=way)
        await chat.ask("124")
        assert await chat.ask("152") == prompt(REFERENCE.format("1"), "5", REFERENCE.format("2"), "152")
        assert len(attempts) == 4

    async def test_a_turn_that_failed_and_is_not_in_the_history(self, retriever, model, handler):
        def fails(given):
            raise ConnectionError("engine gone")

        failing = Chat(conversation(retriever, RunnableLambda(fails)), handler)
        with pytest.raises(ConnectionError):
            await failing.ask("12")
        chat = Chat(conversation(retriever, model), handler)
        assert await chat.ask("12") == prompt("1", "2", "12")

    async def test_two_sessions_with_the_same_beginning(self, retriever, model, handler):
        one = Chat(conversation(retriever, model), handler, thread="one")
        other = Chat(conversation(retriever, model), handler, thread="other")
        await one.ask("12")
        other.history = one.history
        assert BLOCKS["1"] in await other.ask("15")
        assert await one.ask("15") == prompt(REFERENCE.format("1"), "5", "15")

    async def test_two_tenants_with_the_same_session(self, retriever, model, handler):
        per_tenant = retriever.configurable_fields(tenant=ConfigurableField(id="tenant"))
        one = Chat(conversation(per_tenant, model), handler)
        other = Chat(conversation(per_tenant, model), handler)
        one.config["configurable"]["tenant"], other.config["configurable"]["tenant"] = "a", "b"
        await one.ask("12")
        other.history = one.history
        assert BLOCKS["1"] in await other.ask("15")
        assert REFERENCE.format("1") in await one.ask("15")

    async def test_a_restart(self, chat):
        await chat.ask("12")
        chat.config["callbacks"] = [ContextPilotCallbackHandler()]
        assert BLOCKS["1"] in await chat.ask("15")
        assert await chat.ask("15") == prompt(REFERENCE.format("1"), REFERENCE.format("5"), "15")

    async def test_what_never_reached_the_model_in_this_session(self, retriever, model, handler):
        unread = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{question}")])
        await Chat(conversation(retriever, model, unread), handler).ask("12")
        chat = Chat(conversation(retriever, model), handler)
        chat.history = [HumanMessage(f"Is this it?\n\n{BLOCKS['1']}"), AIMessage("It is.")]
        assert BLOCKS["1"] in await chat.ask("12")
        assert await chat.ask("1") == prompt(REFERENCE.format("1"), "1")

    async def test_one_id_with_two_texts(self, chat, monkeypatch):
        await chat.ask("1")
        monkeypatch.setitem(TEXTS, "1", TEXTS["1"].removesuffix(", insurance included."))
        shorter = f"[CB_1] {TEXTS['1']}"
        assert await chat.ask("1") == f"{shorter}\n\n1"
        # From now on the marker could mean either text.
        assert await chat.ask("1") == f"{shorter}\n\n1"

    async def test_a_text_that_shows_a_marker(self, chat, monkeypatch):
        await chat.ask("12")
        monkeypatch.setitem(TEXTS, "5", f"Please refer to [CB_1] in the previous conversation. {TEXTS['5']}")
        assert await chat.ask("125") == "\n\n".join([BLOCKS["1"], BLOCKS["2"], f"[CB_5] {TEXTS['5']}", "125"])
        assert await chat.ask("12") == prompt("1", REFERENCE.format("2"), "12")

    async def test_counting_tokens_fails(self, model, handler, caplog):
        def count(text):
            if text.startswith("Please refer"):
                raise RuntimeError(text)
            return len(text)

        pilot = ContextPilot(token_counter=count)
        retriever = ContextPilotRetriever(retriever=Finds(), deduplicate="session", pilot=pilot)
        chat = Chat(conversation(retriever, model), handler)
        await chat.ask("1")
        with caplog.at_level(logging.WARNING):
            assert await chat.ask("1") == prompt("1", "1")
        assert pilot.outcomes[Outcome.FAILED] == 1
        assert "de-duplication failed with RuntimeError" in caplog.text
        assert "Please refer" not in caplog.text


class TestWiring:
    async def test_without_a_handler(self, retriever, model, caplog):
        chat = Chat(conversation(retriever, model), None)
        chat.config["callbacks"] = []
        with caplog.at_level(logging.WARNING):
            for question in ("12", "21", "12"):
                assert BLOCKS["1"] in await chat.ask(question)
        (record,) = caplog.records
        assert "no ContextPilotCallbackHandler among the callbacks" in record.message
        assert retriever.pilot.outcomes[Outcome.ALIGNED] == 1

    async def test_without_a_session(self, chat, caplog):
        del chat.config["configurable"]
        with caplog.at_level(logging.WARNING):
            for question in ("12", "12"):
                assert BLOCKS["1"] in await chat.ask(question)
        (record,) = caplog.records
        assert "thread_id" in record.message

    @pytest.mark.parametrize(
        "config",
        [
            {"configurable": {"thread_id": "1", "session_id": "2"}, "metadata": {"thread_id": "3"}},
            {"configurable": {"session_id": "1"}, "metadata": {"thread_id": "3", "session_id": "4"}},
            {"metadata": {"thread_id": "1", "session_id": "4"}},
            {"metadata": {"session_id": 1}},
        ],
        ids=["thread", "session", "thread in metadata", "session in metadata"],
    )
    async def test_where_the_sessions_id_comes_from(self, chat, handler, config):
        chat.config = {"callbacks": [handler], **config}
        await chat.ask("12")
        assert handler.observed[-1].session_id == "1"
        assert await chat.ask("1") == prompt(REFERENCE.format("1"), "1")

    async def test_an_argument_of_the_call_comes_first(self, retriever, model, handler):
        chat = Chat(conversation(retriever.bind(session_id="mine"), model), handler)
        await chat.ask("12")
        assert handler.observed[-1].session_id == "mine"
        assert await chat.ask("1") == prompt(REFERENCE.format("1"), "1")

    async def test_a_model_that_takes_text(self, retriever, handler):
        model = FakeListLLM(responses=["answer"]) | AIMessage
        chat = Chat(conversation(retriever, model), handler)
        await chat.ask("12")
        assert await chat.ask("15") == prompt(REFERENCE.format("1"), "5", "15")
        assert handler.lost_texts == 0

    async def test_the_retriever_called_in_a_function(self, retriever, model, handler):
        def found(given):
            return retriever.invoke(given["question"])

        chat = Chat(conversation(retriever, model), handler)
        chain = (
            RunnablePassthrough.assign(documents=found)
            .assign(context=itemgetter("documents") | format_documents)
            .assign(sent=PROMPT)
            .assign(answer=itemgetter("sent") | model)
        )
        chat.chain = chain
        await chat.ask("12")
        assert await chat.ask("15") == prompt(REFERENCE.format("1"), "5", "15")

    @pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
    def test_the_setting_travels(self, retriever):
        assert pickle.loads(pickle.dumps(retriever)).deduplicate == "session"
        loaded = loads(
            dumps(
                ContextPilotRetriever(
                    retriever=ContextPilotRetriever(retriever=Empty()), deduplicate="session"
                )
            ),
            allowed_objects=[ContextPilotRetriever, Empty],
            valid_namespaces=["contextpilot_integrations", Empty.__module__.split(".")[0]],
        )
        assert (loaded.deduplicate, loaded.retriever.deduplicate) == ("session", None)

    def test_another_word_is_refused(self):
        with pytest.raises(ValueError, match="deduplicate"):
            ContextPilotRetriever(retriever=Finds(), deduplicate="always")


class Empty(BaseRetriever):
    @classmethod
    def is_lc_serializable(cls):
        return True

    def _get_relevant_documents(self, query, *, run_manager):
        return []
