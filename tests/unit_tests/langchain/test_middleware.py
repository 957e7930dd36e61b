"""Agents whose model only listens: what it is sent, and what stays in the graph's state."""

import copy
import logging
import pickle
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("langchain.agents")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRetryMiddleware
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import create_retriever_tool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from pydantic import Field

from contextpilot_integrations import ContextPilot, Namespace, Outcome
from contextpilot_integrations.annotation import LOCATION_TEMPLATE
from contextpilot_integrations.langchain import (
    ContextPilotCallbackHandler,
    ContextPilotRetriever,
    format_documents,
)
from contextpilot_integrations.langchain.messages import rewrite_messages
from contextpilot_integrations.langchain.middleware import ContextPilotMiddleware
from contextpilot_integrations.wording import quoted

CONTRACT = "\n".join(
    f"{n}. Clause {n} of {{this}} contract binds both parties, at {n} % a year." for n in range(9)
)
FILES = {
    "a.txt": CONTRACT,
    "b.txt": CONTRACT.replace("Clause 4", "Clause four"),
    "c.txt": "Nothing of the kind stands in this file: it is about bikes, their boxes and their bells.",
}


@tool
def read(path: str) -> str:
    """Read a file."""
    return FILES[path]


def reads(*paths):
    """An answer that asks for files, all in one step."""
    calls = [{"name": "read", "args": {"path": path}, "id": f"{path} {n}"} for n, path in enumerate(paths)]
    return AIMessage("", tool_calls=calls)


class Scripted(BaseChatModel):
    """Says what the script holds, and remembers what it heard."""

    script: list
    heard: list
    failures: list = Field(default_factory=list)
    use_previous_response_id: bool = False

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **kwargs):
        return self

    def _answer(self, messages):
        self.heard.append(copy.deepcopy(messages))
        if self.failures:
            raise self.failures.pop()
        answered = sum(isinstance(message, AIMessage) for message in messages)
        return self.script[answered].model_copy()

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        answer = self._answer(messages)
        chunk = AIMessageChunk(answer.content, tool_calls=answer.tool_calls)
        yield ChatGenerationChunk(message=chunk)


def agent_and_model(*script, middleware=None, tools=(read,), **kwargs):
    model = Scripted(script=[*script, AIMessage("done")], heard=[])
    middleware = [ContextPilotMiddleware()] if middleware is None else middleware
    agent = create_agent(
        model, list(tools), system_prompt="Be 100 % {terse}.", middleware=middleware, **kwargs
    )
    return agent, model


def results(messages):
    return [message.content for message in messages if isinstance(message, ToolMessage)]


def contents(messages):
    """All but the ids that each run gives to new answers."""
    return [message.model_dump(exclude={"id"}) for message in messages]


def assert_nothing_is_lost(sent, lines):
    text = "\n".join(message.content for message in sent)
    assert not [line for line in lines.splitlines() if line not in text]


ASK = {"messages": [HumanMessage("Compare %s {a} and b.", id="ask")]}


async def run(agent, way, given=ASK, config=None):
    """Run an agent to its end, in one of the ways that LangChain has, and return its messages."""
    if way == "ainvoke":
        return (await agent.ainvoke(given, config))["messages"]
    if way == "stream":
        return [*agent.stream(given, config, stream_mode="values")][-1]["messages"]
    if way == "astream":
        return [state async for state in agent.astream(given, config, stream_mode="values")][-1]["messages"]
    if way == "tokens":
        streamed = [*agent.stream(given, config, stream_mode=["messages", "values"])]
        return [state for mode, state in streamed if mode == "values"][-1]["messages"]
    if way == "batch":
        return agent.batch([given], config)[0]["messages"]
    if way == "abatch":
        return (await agent.abatch([given], config))[0]["messages"]
    return agent.invoke(given, config)["messages"]


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "tokens", "batch", "abatch"])
async def test_a_file_read_twice_is_sent_once_and_the_state_keeps_both(way):
    agent, model = agent_and_model(reads("a.txt"), reads("a.txt"), reads("c.txt"))
    messages = await run(agent, way)
    assert results(messages) == [FILES["a.txt"], FILES["a.txt"], FILES["c.txt"]]
    first, again, other = results(model.heard[-1])
    assert (first, other) == (FILES["a.txt"], FILES["c.txt"])
    assert again == "Please refer to a.txt in the previous conversation."
    for before, after in pairwise(model.heard):
        assert after[: len(before)] == before
    for sent, kept in zip(model.heard[-1][1:], messages, strict=False):
        assert sent.model_dump(exclude={"content"}) == kept.model_dump(exclude={"content"})
    assert model.heard[0][0] == SystemMessage("Be 100 % {terse}.")


class TestWhatToolsReturn:
    def test_a_file_that_differs_in_one_line(self):
        agent, model = agent_and_model(reads("a.txt"), reads("b.txt"))
        agent.invoke(ASK)
        _, other = results(model.heard[-1])
        assert "Clause four" in other
        assert len(other.splitlines()) == 3
        assert_nothing_is_lost(model.heard[-1], FILES["b.txt"])

    def test_the_same_file_twice_in_one_step(self):
        agent, model = agent_and_model(reads("a.txt", "c.txt", "a.txt"))
        messages = agent.invoke(ASK)["messages"]
        assert results(messages) == [FILES["a.txt"], FILES["c.txt"], FILES["a.txt"]]
        first, other, again = results(model.heard[-1])
        assert (first, other) == (FILES["a.txt"], FILES["c.txt"])
        assert len(again) < 100
        calls = [m.tool_call_id for m in model.heard[-1] if isinstance(m, ToolMessage)]
        assert calls == ["a.txt 0", "c.txt 1", "a.txt 2"]

    def test_two_tools_with_the_same_text(self):
        @tool
        def fetch(path: str) -> str:
            """Fetch a file."""
            return FILES[path]

        calls = [{"name": name, "args": {"path": "a.txt"}, "id": name} for name in ("read", "fetch")]
        call = AIMessage("", tool_calls=calls)
        agent, model = agent_and_model(call, tools=[read, fetch])
        agent.invoke(ASK)
        assert [len(text) < 100 for text in results(model.heard[-1])] == [False, True]

    def test_a_picture_between_two_texts(self):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
        parts = [{"type": "text", "text": CONTRACT}, picture, {"type": "text", "text": FILES["c.txt"]}]

        @tool
        def look(path: str) -> list:
            """Look at a page."""
            return copy.deepcopy(parts)

        calls = [
            AIMessage("", tool_calls=[{"name": "look", "args": {"path": str(n)}, "id": str(n)}]) for n in "12"
        ]
        agent, model = agent_and_model(*calls, tools=[look])
        messages = agent.invoke(ASK)["messages"]
        assert results(messages) == [parts, parts]
        first, again = results(model.heard[-1])
        assert first == parts
        assert again[1] == picture
        assert [part["type"] for part in again] == ["text", "image_url", "text"]
        assert all(len(again[n]["text"]) < len(parts[n]["text"]) for n in (0, 2))

    @pytest.mark.parametrize("way", ["invoke", "ainvoke"])
    async def test_documents_beside_the_text(self, way):
        texts = [f"Page {n}. {FILES['c.txt']} Nothing of the other kind, either." for n in range(4)]

        class Finds(BaseRetriever):
            def _get_relevant_documents(self, query, *, run_manager):
                return [Document(texts[int(n)], id=n) for n in query]

        search = create_retriever_tool(Finds(), "search", "Search.", response_format="content_and_artifact")
        calls = [
            AIMessage("", tool_calls=[{"name": "search", "args": {"query": query}, "id": query}])
            for query in ("012", "13", "023")
        ]
        agent, model = agent_and_model(*calls, tools=[search])
        messages = await run(agent, way)
        again, last = [message for message in messages if isinstance(message, ToolMessage)][1:]
        assert again.content == f"{texts[1]}\n\n{texts[3]}"
        assert [document.id for document in last.artifact] == ["0", "2", "3"]
        assert model.heard[-1][-1].artifact == last.artifact
        # Each is shorter than what is left out of text that is no known block.
        zero, one, two, three = (
            LOCATION_TEMPLATE.replace("{source}", f'the text that begins "{quoted(text, in_json=False)}"')
            for text in texts
        )
        assert results(model.heard[-1])[1:] == [f"{one}\n\n{texts[3]}", f"{zero}\n\n{two}\n\n{three}"]
        for before, after in pairwise(model.heard):
            assert after[: len(before)] == before
        # Who remembers nothing sends the same.
        fresh, other = agent_and_model(*calls, tools=[search])
        await run(fresh, way, {"messages": messages[:-1]})
        assert results(other.heard[0]) == results(model.heard[-1])


class TestTheMessagesDecide:
    def test_documents_in_the_system_prompt_are_aligned(self):
        def ask(*names):
            documents = "".join(f'<document id="{name}">About {name}.</document>\n' for name in names)
            model = Scripted(script=[AIMessage("Done.")], heard=[])
            create_agent(model, system_prompt=documents + "Be brief.", middleware=middleware).invoke(ASK)
            return model.heard[-1][0].content

        middleware = [ContextPilotMiddleware()]
        ask("oak", "elm", "ash")
        sent = ask("elm", "yew", "oak")
        assert sent.index('"oak"') < sent.index('"elm"') < sent.index('"yew"')
        assert 'id "elm" > id "yew" > id "oak" and answer the question.' in sent

    def test_what_stands_in_the_system_prompt(self):
        model = Scripted(script=[reads("a.txt"), AIMessage("done")], heard=[])
        middleware = [ContextPilotMiddleware()]
        agent = create_agent(model, [read], system_prompt=f"Know this:\n\n{CONTRACT}", middleware=middleware)
        agent.invoke(ASK)
        system, *_, result = model.heard[-1]
        assert system == SystemMessage(f"Know this:\n\n{CONTRACT}")
        assert CONTRACT not in result.content

    def test_the_next_turn_of_a_thread(self):
        agent, model = agent_and_model(
            reads("a.txt"), AIMessage("Read."), reads("a.txt"), checkpointer=InMemorySaver()
        )
        config = {"configurable": {"thread_id": "1"}}
        agent.invoke(ASK, config)
        agent.invoke({"messages": [HumanMessage("Once more.")]}, config)
        assert results(model.heard[-1])[1] == "Please refer to a.txt in the previous conversation."
        state = agent.get_state(config).values["messages"]
        assert results(state) == [FILES["a.txt"]] * 2

    def test_documents_that_a_checkpoint_gives_back_as_dicts(self):
        class Finds(BaseRetriever):
            def _get_relevant_documents(self, query, *, run_manager):
                return [Document(FILES[path], id=path) for path in query.split()]

        search = create_retriever_tool(Finds(), "search", "Search.", response_format="content_and_artifact")
        calls = [
            AIMessage("", tool_calls=[{"name": "search", "args": {"query": query}, "id": str(n)}])
            for n, query in enumerate(("a.txt b.txt", "b.txt c.txt a.txt"))
        ]
        saver, config = InMemorySaver(), {"configurable": {"thread_id": "1"}}
        heard = []
        for _ in range(2):
            model = Scripted(script=[*calls, *[AIMessage("Read.")] * 2], heard=[])
            agent = create_agent(model, [search], middleware=[ContextPilotMiddleware()], checkpointer=saver)
            agent.invoke(ASK, config)
            heard.append(results(model.heard[-1]))
        artifact = agent.get_state(config).values["messages"][2].artifact
        assert not isinstance(artifact[0], Document)
        assert heard[0] == heard[1]
        assert "Please refer to the text that begins" in heard[0][1]

    def test_threads_with_the_same_beginning(self):
        agent, model = agent_and_model(reads("a.txt"), reads("a.txt"), checkpointer=InMemorySaver())
        for thread in "12":
            agent.invoke(ASK, {"configurable": {"thread_id": thread}})
        one, other = model.heard[:3], model.heard[3:]
        assert [results(messages) for messages in one] == [results(messages) for messages in other]

    def test_a_model_that_is_called_again(self):
        retry = ModelRetryMiddleware(initial_delay=0, jitter=False)
        agent, model = agent_and_model(
            reads("a.txt"), reads("a.txt"), middleware=[retry, ContextPilotMiddleware()]
        )
        model.failures += [ConnectionError("engine gone")]
        agent.invoke(ASK)
        assert len(model.heard) == 4
        assert model.heard[0] == model.heard[1]
        model.heard.clear()
        model.failures += [ConnectionError("engine gone")]
        agent.invoke({"messages": [*ASK["messages"]]})
        assert results(model.heard[-1])[1] == "Please refer to a.txt in the previous conversation."

    def test_a_history_that_other_middleware_cuts(self):
        class KeepsTheLastStep(AgentMiddleware):
            def wrap_model_call(self, request, handler):
                return handler(request.override(messages=request.messages[-2:]))

        read_twice = [
            *ASK["messages"],
            reads("a.txt"),
            ToolMessage(CONTRACT, tool_call_id="a.txt 0"),
            reads("a.txt"),
            ToolMessage(CONTRACT, tool_call_id="a.txt 0"),
        ]
        for middleware, expected in (
            ([ContextPilotMiddleware()], [CONTRACT, "Please refer to a.txt in the previous conversation."]),
            ([KeepsTheLastStep(), ContextPilotMiddleware()], [CONTRACT]),
        ):
            agent, model = agent_and_model(*[AIMessage("done")] * 2, middleware=middleware)
            agent.invoke({"messages": read_twice})
            assert results(model.heard[-1]) == expected

    def test_another_process_goes_on_with_a_checkpoint(self):
        script = [reads("a.txt"), reads("b.txt"), AIMessage("Read."), reads("a.txt", "b.txt")]
        saver = InMemorySaver()
        agent, model = agent_and_model(*script, checkpointer=saver)
        config = {"configurable": {"thread_id": "1"}}
        agent.invoke(ASK, config)
        checkpoint = pickle.dumps((saved(saver), script, config))
        agent.invoke(MORE, config)

        code = f"import runpy; runpy.run_path({__file__!r})['go_on_in_another_process']()"
        other = subprocess.run(
            [sys.executable, "-c", code], input=checkpoint, capture_output=True, check=False
        )
        assert other.returncode == 0, other.stderr.decode()
        heard, kept = pickle.loads(other.stdout)
        # The bytes of what was sent before and of what comes new, and the state, are what they are here.
        here = agent.get_state(config).values["messages"]
        assert [contents(messages) for messages in heard] == [contents(m) for m in model.heard[-2:]]
        assert contents(kept) == contents(here)
        assert kept[:-4] == here[:-4]
        assert results(kept) == [FILES[path] for path in ("a.txt", "b.txt", "a.txt", "b.txt")]
        assert_nothing_is_lost(heard[-1], FILES["a.txt"] + "\n" + FILES["b.txt"])
        assert sum(map(len, results(heard[-1]))) < 2 * len(CONTRACT)


MORE = {"messages": [HumanMessage("Once more.", id="more")]}


def saved(saver):
    """What a checkpointer holds, as plain dicts."""
    storage = {
        thread: {ns: dict(kept) for ns, kept in by_ns.items()} for thread, by_ns in saver.storage.items()
    }
    return storage, {key: dict(value) for key, value in saver.writes.items()}, dict(saver.blobs)


def go_on_in_another_process():
    """Take a checkpoint from standard input, have the next turn, and write what was heard and is kept."""
    (storage, writes, blobs), script, config = pickle.load(sys.stdin.buffer)
    saver = InMemorySaver()
    for thread, by_ns in storage.items():
        saver.storage[thread].update(by_ns)
    saver.writes.update(writes)
    saver.blobs.update(blobs)
    agent, model = agent_and_model(*script, checkpointer=saver)
    agent.invoke(MORE, config)
    pickle.dump((model.heard, agent.get_state(config).values["messages"]), sys.stdout.buffer)


class TestNeverInTheWay:
    def test_the_request_is_all_the_same_otherwise(self):
        seen = []

        class Looks(AgentMiddleware):
            def wrap_model_call(self, request, handler):
                seen.append(request)
                return handler(request)

        class LooksAgain(Looks):
            pass

        middleware = [Looks(), ContextPilotMiddleware(), LooksAgain()]
        agent, _ = agent_and_model(reads("a.txt"), reads("a.txt"), middleware=middleware)
        agent.invoke(ASK)
        before, after = seen[-2:]
        assert before.messages != after.messages
        for name in ("model", "system_message", "tools", "tool_choice", "state", "runtime", "model_settings"):
            assert getattr(after, name) == getattr(before, name)
        assert before.state["messages"] == before.messages

    @pytest.mark.parametrize("behavior", ["ignore", "warn", "raise"])
    async def test_a_model_whose_server_remembers(self, behavior, caplog):
        middleware = ContextPilotMiddleware(unsupported_model_behavior=behavior)
        agent, model = agent_and_model(reads("a.txt"), reads("a.txt"), middleware=[middleware])
        model.use_previous_response_id = True
        with caplog.at_level(logging.WARNING):
            if behavior == "raise":
                with pytest.raises(ValueError, match="Scripted leaves out earlier messages"):
                    agent.invoke(ASK)
                with pytest.raises(ValueError, match="previous_response_id"):
                    await agent.ainvoke(ASK)
            else:
                agent.invoke(ASK)
                assert results(model.heard[-1]) == [CONTRACT, CONTRACT]
        assert len(caplog.records) == (behavior == "warn")

    def test_a_setting_of_the_model_that_makes_its_server_remember(self):
        class Settings(AgentMiddleware):
            def wrap_model_call(self, request, handler):
                return handler(request.override(model_settings={"previous_response_id": "r"}))

        middleware = ContextPilotMiddleware(unsupported_model_behavior="raise")
        agent, _ = agent_and_model(middleware=[Settings(), middleware])
        with pytest.raises(ValueError, match="previous_response_id"):
            agent.invoke(ASK)

    def test_another_word_is_refused(self):
        with pytest.raises(ValueError, match='"ignore", "warn" or "raise", got \'quiet\''):
            ContextPilotMiddleware(unsupported_model_behavior="quiet")

    @pytest.mark.parametrize("on_error", ["warn", "raise"])
    def test_a_failure_inside(self, on_error, caplog):
        def fails(text):
            raise RuntimeError(text)

        pilot = ContextPilot(token_counter=fails, on_error=on_error)
        agent, model = agent_and_model(
            reads("a.txt"), reads("a.txt"), middleware=[ContextPilotMiddleware(pilot)]
        )
        with caplog.at_level(logging.WARNING):
            if on_error == "raise":
                with pytest.raises(RuntimeError):
                    agent.invoke(ASK)
            else:
                agent.invoke(ASK)
                assert results(model.heard[-1]) == [CONTRACT, CONTRACT]
                assert "Clause" not in caplog.text

    def test_arguments_that_are_no_json(self, caplog):
        circular = {}
        circular["self"] = circular
        messages = [
            HumanMessage("hi"),
            AIMessage("", tool_calls=[{"name": "f", "args": circular, "id": "1"}]),
        ]
        pilot = ContextPilot(on_error="ignore")
        assert rewrite_messages(messages, pilot=pilot, namespace=Namespace()) == messages
        assert pilot.outcomes[Outcome.FAILED] == 1


class TestNamespaces:
    def heard_after(self, *middlewares):
        """What the model hears of a first message, after another one with the same blocks."""
        texts = [
            f"[CB_{n}] Text {n} of some length, so that a block of it is worth a place." for n in range(5)
        ]
        for middleware, order in zip(middlewares, ([0, 1, 2, 3], [3, 1, 0, 2]), strict=True):
            agent, model = agent_and_model(middleware=[middleware])
            question = HumanMessage("\n\n".join([*(texts[n] for n in order), texts[4], "What now?"]))
            agent.invoke({"messages": [question]})
        return model.heard[0][1].content.split("\n\n")[:4] == texts[:4]

    def test_one_pilot_aligns_what_meets_the_same_cache(self):
        pilot = ContextPilot()
        assert self.heard_after(ContextPilotMiddleware(pilot), ContextPilotMiddleware(pilot))
        assert not self.heard_after(ContextPilotMiddleware(), ContextPilotMiddleware())

    @pytest.mark.parametrize("setting", [{"tenant": "t"}, {"model": "m"}, {"endpoint": "e"}])
    def test_others_are_apart(self, setting):
        pilot = ContextPilot()
        assert not self.heard_after(ContextPilotMiddleware(pilot), ContextPilotMiddleware(pilot, **setting))

    def test_a_tenant_per_request(self):
        class PerThread(ContextPilotMiddleware):
            def namespace(self, request):
                return replace(super().namespace(request), tenant=request.runtime.context)

        middleware = PerThread()
        agent, _ = agent_and_model(middleware=[middleware])
        agent.invoke(ASK, context="someone")

    def test_the_tools_stand_in_front(self):
        seen = []

        class Looks(ContextPilotMiddleware):
            def namespace(self, request):
                seen.append(super().namespace(request))
                return seen[-1]

        @tool
        def other(path: str) -> str:
            """Do something else."""
            return path

        for tools in ([read], [read], [read, other], [other], [], [{"type": "web_search"}]):
            agent, _ = agent_and_model(tools=tools, middleware=[Looks(model="m")])
            agent.invoke(ASK)
        assert seen[0] == seen[1]
        assert len(set(seen)) == 5
        assert seen[4] == Namespace(model="m")
        assert "Read a file." in seen[0].preamble


class TestRetrieversInGraphs:
    """`deduplicate="session"` where the history is a graph's state."""

    @pytest.fixture
    def retriever(self):
        class Finds(BaseRetriever):
            def _get_relevant_documents(self, query, *, run_manager):
                return [Document(FILES[name], id=name) for name in query.split()]

        return ContextPilotRetriever(retriever=Finds(), deduplicate="session")

    @pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
    async def test_a_node_that_retrieves(self, retriever, way):
        model = Scripted(script=[AIMessage(f"answer {n}") for n in range(3)], heard=[])

        def retrieve(state):
            *_, question = state["messages"]
            context = format_documents.invoke(retriever.invoke(question.content))
            return {"messages": [HumanMessage(f"{context}\n\n{question.content}", id=question.id)]}

        def answer(state):
            return {"messages": [model.invoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_sequence([retrieve, answer]).set_entry_point("retrieve")
        chat = graph.compile(checkpointer=InMemorySaver())
        handler = ContextPilotCallbackHandler()
        config = {"callbacks": [handler], "configurable": {"thread_id": "1"}}
        for number, question in enumerate(("a.txt", "c.txt a.txt")):
            await run(chat, way, {"messages": [HumanMessage(question, id=f"q{number}")]}, config)
        assert model.heard[1][2].content == (
            f"[CB_c.txt] {FILES['c.txt']}\n\n"
            "Please refer to [CB_a.txt] in the previous conversation.\n\nc.txt a.txt"
        )
        assert [run.session_id for run in handler.observed] == ["1", "1"]

    def test_a_tool_that_retrieves_is_given_no_messages_and_sends_all(self, retriever):
        @tool
        def search(query: str, config: RunnableConfig) -> str:
            """Search."""
            return format_documents.invoke(retriever.invoke(query, config))

        calls = [
            AIMessage("", tool_calls=[{"name": "search", "args": {"query": query}, "id": query}])
            for query in ("a.txt", "c.txt a.txt")
        ]
        handler = ContextPilotCallbackHandler()
        config = {"callbacks": [handler], "configurable": {"thread_id": "1"}}
        agent, model = agent_and_model(*calls, tools=[search], middleware=[])
        agent.invoke(ASK, config)
        assert all(f"[CB_a.txt] {CONTRACT}" in text for text in results(model.heard[-1]))
        # That is what the middleware is for.
        agent, model = agent_and_model(*calls, tools=[search])
        agent.invoke(ASK, config)
        assert [CONTRACT in text for text in results(model.heard[-1])] == [True, False]
        assert_nothing_is_lost(model.heard[-1], CONTRACT)
