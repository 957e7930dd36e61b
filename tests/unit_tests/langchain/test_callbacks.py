"""The handler watches: it keeps little, changes nothing, and never gets in the way."""

import asyncio
import copy
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from uuid import UUID

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListLLM, GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnablePassthrough

from contextpilot_integrations.engines import Usage
from contextpilot_integrations.langchain import (
    ContextPilotCallbackHandler,
    ContextPilotRetriever,
    callbacks,
    format_documents,
)
from contextpilot_integrations.langchain.documents import to_block
from contextpilot_integrations.langchain.sessions import Fingerprint, Sessions, standing

TEXT = "Text number {} goes on for so long that an annotation in its place is shorter."


class Finds(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        if query == "fails":
            raise LookupError(query)
        return [Document(TEXT.format(number), id=number) for number in query.split()]


def answers():
    """Answers whose n-th had n tokens cached; threads may share them."""
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    cached = [{**usage, "input_token_details": {"cache_read": number}} for number in range(200)]
    return iter([AIMessage("answer", usage_metadata=counts) for counts in cached])


@pytest.fixture
def handler():
    return ContextPilotCallbackHandler()


PROMPT = ChatPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{context}")])


def chain(model):
    retriever = ContextPilotRetriever(retriever=Finds(), deduplicate="session")
    found = RunnablePassthrough.assign(context=itemgetter("question") | retriever | format_documents)
    return found.assign(sent=PROMPT).assign(answer=itemgetter("sent") | model)


@pytest.fixture
def chat():
    return chain(GenericFakeChatModel(messages=answers()))


def config(handler, thread="1"):
    return {"callbacks": [handler], "configurable": {"thread_id": thread}}


def is_empty(handler):
    return not len(handler._runs) and not handler._runs._roots


class TestReports:
    def test_a_turn(self, chat, handler):
        first = chat.invoke({"question": "1 2", "history": []}, config(handler))
        chat.invoke({"question": "2 3", "history": first["sent"].to_messages()}, config(handler, 1))
        one, two = handler.observed
        assert (one.session_id, one.sent, one.annotated) == ("1", ("1", "2"), ())
        assert (two.session_id, two.sent, two.annotated) == ("1", ("2", "3"), ("2",))
        assert one.usage == (Usage(100, 5, 0),)
        assert (two.prompt_tokens, two.cached_tokens) == (100, 1)
        assert one.run_id != two.run_id

    def test_several_model_calls(self, handler):
        model = GenericFakeChatModel(messages=answers())
        RunnableLambda(lambda text: model.invoke(text) and model.invoke(text)).invoke("q", config(handler))
        (run,) = handler.observed
        assert (run.prompt_tokens, run.cached_tokens) == (200, 1)

    def test_what_is_not_told_is_unknown(self, handler):
        model = GenericFakeChatModel(messages=iter([AIMessage("a"), *answers()]))
        RunnableLambda(lambda text: model.invoke(text) and model.invoke(text)).invoke("q", config(handler))
        FakeListLLM(responses=["a"]).invoke("q", config(handler))
        chain, llm = handler.observed
        assert len(chain.usage) == 2
        assert chain.cached_tokens is chain.prompt_tokens is llm.cached_tokens is None

    def test_a_stream(self, chat, handler):
        list(chat.stream({"question": "1", "history": []}, config(handler)))
        (run,) = handler.observed
        assert (run.sent, len(run.usage)) == (("1",), 1)

    def test_a_retriever_alone(self, handler):
        ContextPilotRetriever(retriever=Finds()).invoke("1 2", config(handler))
        assert [(run.sent, run.session_id, run.usage) for run in handler.observed] == [(("1", "2"), None, ())]

    def test_chains_without_retrieval_and_model_are_none(self, handler):
        RunnableLambda(len).invoke("text", config(handler))
        assert handler.observed == ()

    def test_only_so_many_are_kept(self, chat):
        handler = ContextPilotCallbackHandler(max_runs=3)
        for number in range(5):
            chat.invoke({"question": str(number), "history": []}, config(handler))
        assert [run.sent for run in handler.observed] == [("2",), ("3",), ("4",)]


class TestNothingStays:
    @pytest.mark.parametrize("question", ["1 2", "fails"])
    async def test_after_runs_that_end_or_fail(self, chat, handler, question):
        given = {"question": question, "history": [HumanMessage("hi")]}

        async def consume():
            return [chunk async for chunk in chat.astream(given, config(handler))]

        for call in (
            lambda: asyncio.to_thread(chat.invoke, given, config(handler)),
            lambda: chat.ainvoke(given, config(handler)),
            consume,
            lambda: asyncio.to_thread(lambda: list(chat.stream(given, config(handler)))),
            lambda: chat.abatch([given, given], config(handler)),
        ):
            if question == "fails":
                with pytest.raises(LookupError):
                    await call()
            else:
                await call()
        while len(asyncio.all_tasks()) > 1:  # abatch leaves the others running.
            await asyncio.sleep(0)
        assert is_empty(handler)

    async def test_after_a_task_that_was_cancelled(self, handler):
        started = asyncio.Event()

        async def hangs(given):
            started.set()
            await asyncio.Event().wait()

        stuck = chain(RunnableLambda(lambda given: None, hangs))
        task = asyncio.create_task(stuck.ainvoke({"question": "1", "history": []}, config(handler)))
        await started.wait()
        assert not is_empty(handler)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_empty(handler)

    def test_after_a_stream_that_nobody_read_to_its_end(self, handler):
        model = GenericFakeChatModel(messages=answers())
        stream = (RunnableLambda(lambda text: text) | model).stream("q", config(handler))
        next(stream)
        assert not is_empty(handler)
        stream.close()
        assert is_empty(handler)

    def test_runs_that_never_end_are_forgotten(self):
        handler = ContextPilotCallbackHandler(max_runs=10)
        for number in range(0, 1000, 2):
            handler.on_chain_start(None, {}, run_id=UUID(int=number))
            handler.on_retriever_start(None, "q", run_id=UUID(int=number + 1), parent_run_id=UUID(int=number))
        assert len(handler._runs) == 20
        handler.on_retriever_end([], run_id=UUID(int=1), parent_run_id=UUID(int=0))
        handler.on_chain_end({}, run_id=UUID(int=0))
        assert len(handler._runs) == 20

    def test_runs_that_outlive_their_root(self, handler):
        root, step, late = UUID(int=1), UUID(int=2), UUID(int=3)
        handler.on_chain_start(None, {}, run_id=root)
        handler.on_chain_start(None, {}, run_id=step, parent_run_id=root)
        handler.on_chain_end({}, run_id=root)
        assert is_empty(handler)
        handler.on_chain_start(None, {}, run_id=late, parent_run_id=step)
        handler.on_chain_end({}, run_id=step)
        handler.on_chain_end({}, run_id=late)
        assert is_empty(handler)

    def test_no_text_stays(self, chat, handler):
        chat.invoke({"question": "1 2", "history": []}, config(handler))
        assert "goes on for so long" not in repr(vars(handler)) + repr(handler._sessions._sessions)
        assert len(handler._sessions) == 1


class TestNeverInTheWay:
    def test_a_failure_inside(self, chat, handler, monkeypatch, caplog):
        def fails(*args):
            raise RuntimeError("Text number 1")

        monkeypatch.setattr(callbacks, "standing", fails)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                turn = chat.invoke({"question": "1", "history": [HumanMessage("hi")]}, config(handler))
        assert turn["sent"].to_messages()[-1].content == f"[CB_1] {TEXT.format(1)}"
        assert "RuntimeError" in caplog.text
        assert "Text number" not in caplog.text
        assert is_empty(handler)

    def test_inputs_stay_as_they_are(self, chat, handler):
        given = {"question": "1 2", "history": [HumanMessage("hi"), AIMessage(["a", {"type": "text"}])]}
        before = copy.deepcopy(given)
        chat.invoke(given, config(handler))
        assert given == before

    async def test_events_come_in_their_order_in_the_loop(self, handler, monkeypatch):
        threads = set()
        monkeypatch.setattr(
            callbacks, "read_usage", lambda message: threads.add(threading.current_thread()) or Usage()
        )
        await GenericFakeChatModel(messages=answers()).ainvoke("q", config(handler))
        assert threads == {threading.current_thread()}

    @pytest.mark.parametrize("name", ["max_sessions", "session_seconds", "max_runs"])
    def test_what_is_out_of_range(self, name):
        with pytest.raises(ValueError, match=f"{name} must be .* got 0"):
            ContextPilotCallbackHandler(**{name: 0})

    def test_threads_share_it(self, chat, handler):
        barrier = threading.Barrier(8)

        def converse(thread):
            barrier.wait()
            history = []
            for turn in range(10):
                given = {"question": f"{thread} {thread}x{turn}", "history": history}
                result = chat.invoke(given, config(handler, thread))
                history = result["sent"].to_messages()
                reference = f"Please refer to [CB_{thread}] in the previous conversation."
                assert history[-1].content.startswith(reference if turn else f"[CB_{thread}] ")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(converse, map(str, range(8))))
        assert is_empty(handler)
        assert len(handler.observed) == 80
        assert handler.lost_texts == 0

    async def test_tasks_share_it(self, chat, handler):
        async def converse(thread):
            history = []
            for _ in range(5):
                given = {"question": thread, "history": history}
                result = await chat.ainvoke(given, config(handler, thread))
                history = result["sent"].to_messages()
            return [message.content[:6] for message in history]

        results = await asyncio.gather(*(converse(str(thread)) for thread in range(8)))
        assert results == [[f"[CB_{thread}]", *["Please"] * 4] for thread in range(8)]
        assert is_empty(handler)


class TestSessions:
    @pytest.fixture
    def now(self):
        return [0.0]

    @pytest.fixture
    def sessions(self, now):
        return Sessions(limit=2, seconds=60, labels=3, clock=lambda: now[0])

    def test_they_expire_after_their_last_use(self, sessions, now):
        session = sessions.get(("", "a"))
        now[0] = 59
        assert sessions.get(("", "a")) is session
        now[0] = 118
        assert sessions.get(("", "a")) is session
        now[0] = 178
        assert sessions.get(("", "a")) is not session

    def test_what_expired_is_dropped_without_being_asked_for(self, sessions, now):
        sessions.get(("", "a"))
        now[0] = 60
        sessions.get(("", "b"))
        assert len(sessions) == 1

    def test_the_least_recently_used_goes_first(self, sessions):
        a, b = sessions.get(("", "a")), sessions.get(("", "b"))
        sessions.get(("", "a"))
        sessions.get(("", "c"))
        assert sessions.get(("", "a")) is a
        assert sessions.get(("", "b")) is not b
        assert len(sessions) == 2

    def test_tenants_are_apart(self, sessions):
        assert sessions.get(("one", "a")) is not sessions.get(("other", "a"))

    def test_a_session_remembers_so_many_blocks(self, sessions):
        session = sessions.get(("", "a"))
        prints = [Fingerprint.of(to_block(Document("text", id=str(number)))) for number in range(5)]
        for fingerprint in prints:
            session.add_sent([fingerprint])
            session.add_annotations({fingerprint.label: fingerprint})
        assert session.sent == prints[2:]
        assert [*session.annotations] == ["2", "3", "4"]


class TestStanding:
    def find(self, text, *documents):
        prints = {Fingerprint.of(to_block(document)): document.id for document in documents}
        return {prints[found] for found in standing([text], prints)}

    def test_whole_and_verbatim(self):
        documents = Document("one\r\ntwo ", id="1"), Document("👩‍🚀 {x} %s", id="2"), Document("", id="3")
        for document in documents:
            text = to_block(document).render()
            assert self.find(f"x{text}y", *documents) == {document.id}
            assert self.find(text[:-1], *documents) == set()
            assert self.find(text.replace("o", "0").replace("x", "y").replace("3", "4"), *documents) == set()

    def test_several_and_a_marker_inside_a_text(self):
        outer, inner = Document("see [CB_b] text", id="a"), Document("text", id="b")
        assert self.find("[CB_a] see [CB_b] text", outer, inner) == {"a", "b"}
        assert self.find("[CB_[CB_b] text", outer, inner) == {"b"}

    def test_a_lone_surrogate(self):
        document = Document.model_construct(page_content="\ud800", metadata={}, id="1")
        assert self.find("[CB_1] \ud800", document) == {"1"}
