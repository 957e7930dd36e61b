"""A chat's memories: new ones in full, those in view by name, updates with what they replace."""

import copy
import logging
import threading

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Outcome, block
from contextpilot_integrations.mem0 import AsyncContextPilotMemory, ContextPilotMemory, found_ids, view

ADA = {"filters": {"user_id": "ada"}}
SYSTEM = {"role": "system", "content": "Answer in a few words."}
LONG = " She has done so since she was a child and tells everybody about it."


@pytest.fixture
def tea(memory):
    return memory("tea", "Ada drinks green tea." + LONG)


@pytest.fixture
def cake(memory):
    return memory("cake", "Ada bakes cakes." + LONG)


@pytest.fixture
def cats(memory):
    return memory("cats", "Ada has two cats." + LONG)


@pytest.fixture
def town(memory):
    return memory("town", "Ada lives in Leeds." + LONG)


class Chat:
    """A chat that keeps its turns as they were sent."""

    def __init__(self, plain, **options):
        self.memory = ContextPilotMemory(plain, **{"pilot": ContextPilot(on_error="raise"), **options})
        self.messages = [SYSTEM]

    def turn(self, *memories, question="What do you know?"):
        self.memory.wrapped.found = {"results": [*memories]}
        turn = self.memory.turn_context(question, self.messages, **ADA)
        content = f"{turn.text}\n\n{question}" if turn.text else question
        self.messages += [{"role": "user", "content": content}, {"role": "assistant", "content": "This."}]
        return turn


@pytest.fixture
def chat(store):
    return Chat(store())


def mark(memory):
    """The memory's marker."""
    return f"[CB_{ContextBlock(memory['id'], memory['memory']).label}]"


def full(memory):
    return f"{mark(memory)} {memory['memory']}"


def named(*memories):
    return f"Please refer to {', '.join(map(mark, memories))} in the previous conversation."


def replaces(new, old):
    return f"Please note that {mark(new)} replaces {mark(old)} in the previous conversation."


def lines(*paragraphs):
    return "\n\n".join(paragraphs)


class TestWhatIsInView:
    def test_a_memory_is_sent_once(self, chat, tea, cake, cats):
        assert chat.turn(tea, cake).text == lines(full(tea), full(cake))
        assert chat.turn(cats, tea).text == lines(full(cats), named(tea))
        assert chat.turn(tea, cake, cats).text == named(tea, cake, cats)

    def test_neighbours_share_an_annotation_and_the_order_of_relevance_stays(
        self, chat, tea, cake, cats, town
    ):
        chat.turn(tea, cake, cats)
        turn = chat.turn(cats, tea, town, cake)
        assert turn.text == lines(named(cats, tea), full(town), named(cake))
        entries = [memory["contextpilot"] for memory in turn.found["results"]]
        assert [entry["shown_as"] for entry in entries] == [
            named(cats, tea),
            named(cats, tea),
            None,
            named(cake),
        ]
        assert [entry["position"] for entry in entries] == [0, 1, 2, 3]

    def test_what_was_cut_from_the_history_is_sent_again(self, chat, tea, cake):
        chat.turn(tea)
        chat.turn(cake)
        del chat.messages[1:3]
        assert chat.turn(tea, cake).text == lines(full(tea), named(cake))

    def test_a_history_of_questions_and_answers_shows_nothing(self, chat, tea):
        chat.turn(tea)
        chat.messages[1] = {"role": "user", "content": "What do you know?"}
        assert chat.turn(tea).text == full(tea)

    def test_a_summary_that_names_a_memory_does_not_show_it(self, chat, tea):
        chat.messages += [
            {"role": "user", "content": f"We spoke of {mark(tea)} and {tea['memory'][:20]}"},
            {"role": "assistant", "content": "Yes."},
        ]
        assert chat.turn(tea).text == full(tea)

    @pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + " Or not.", lambda t: "x" + t])
    def test_a_text_that_was_changed_in_the_history_is_sent_again(self, chat, tea, change):
        chat.turn(tea)
        chat.messages[1] = {"role": "user", "content": lines(change(full(tea)), "What do you know?")}
        assert chat.turn(tea).text == full(tea)

    def test_what_the_model_said_itself_shows_nothing(self, chat, tea):
        chat.messages += [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": full(tea)}]
        assert chat.turn(tea).text == full(tea)

    def test_parts_and_answers_of_the_openai_package_are_read(self, chat, tea, cake):
        class Answer:
            def model_dump(self, **kwargs):
                return {"role": "assistant", "content": "This."}

        parts = [{"type": "text", "text": full(tea)}, {"type": "text", "text": "What do you know?"}]
        chat.messages += [{"role": "user", "content": parts}, Answer()]
        assert chat.turn(tea, cake).text == lines(named(tea), full(cake))

    def test_another_wrapper_over_the_same_history_writes_the_same(self, store, chat, tea, cake, cats):
        other = Chat(store())
        chat.turn(tea, cake)
        other.messages = list(chat.messages)
        update = {**tea, "memory": "Ada drinks black tea." + LONG}
        found = (cats, update, cake)
        assert other.turn(*found).text == chat.turn(*found).text
        assert replaces(update, tea) in other.messages[-2]["content"]

    def test_another_users_memory_is_another_block(self, chat, tea, memory):
        chat.turn(tea)
        same_text = memory("tea of bob", tea["memory"])
        assert chat.turn(same_text).text == full(same_text)

    def test_a_memory_too_short_to_be_named_is_repeated(self, chat, memory):
        short = memory("short", "Likes tea")
        chat.turn(short)
        turn = chat.turn(short)
        assert turn.text == full(short)
        assert turn.found["results"][0]["contextpilot"]["shown_as"] is None

    def test_several_paragraphs_and_the_question_behind_them(self, chat, memory, tea):
        letter = memory("letter", "Dear Ada,\n\nthe tea is sold out." + LONG + "\n\nYours, Bob")
        beginning = memory("letter", "Dear Ada,")
        chat.turn(letter)
        assert chat.turn(tea, letter).text == lines(full(tea), named(letter))
        # What another text of the same memory begins with is another block all the same.
        assert chat.turn(beginning).text == lines(full(beginning), replaces(beginning, letter))


class TestUpdates:
    @pytest.fixture
    def black(self, tea):
        return {**tea, "memory": "Ada drinks black tea." + LONG}

    def test_an_update_is_sent_with_what_it_replaces(self, chat, tea, black, cake):
        chat.turn(tea, cake)
        turn = chat.turn(cake, black)
        assert turn.text == lines(named(cake), full(black), replaces(black, tea))
        assert turn.found["results"][1]["contextpilot"]["replaces"] == mark(tea)[4:-1]
        assert chat.turn(black).text == named(black)

    def test_an_update_of_what_is_not_in_view_replaces_nothing(self, chat, tea, black):
        chat.turn(tea)
        del chat.messages[1:]
        assert chat.turn(black).text == full(black)

    def test_the_newest_text_in_view_is_replaced(self, chat, tea, black):
        white = {**tea, "memory": "Ada drinks white tea." + LONG}
        chat.turn(tea)
        chat.turn(black)
        assert chat.turn(white).text == lines(full(white), replaces(white, black))

    def test_a_text_that_comes_back_is_sent_again_since_it_was_replaced(self, chat, tea, black):
        chat.turn(tea)
        chat.turn(black)
        assert chat.turn(tea).text == lines(full(tea), replaces(tea, black))
        assert chat.turn(tea).text == named(tea)
        assert chat.turn(black).text == lines(full(black), replaces(black, tea))

    def test_the_last_block_of_a_message_is_replaced_too(self, chat, tea, black):
        chat.turn(tea, question="One.\n\nTwo.\n\nThree?")
        assert chat.turn(black).text == lines(full(black), replaces(black, tea))

    @pytest.mark.parametrize("paragraphs", [2, 16, 17, 300])
    def test_a_text_of_many_paragraphs_is_replaced_too(self, chat, memory, cake, paragraphs):
        drinks = "\n\n".join(f"At {hour} Ada drinks tea." for hour in range(paragraphs))
        old, new = memory("day", drinks), memory("day", drinks.replace("tea", "coffee"))
        chat.turn(cake, old, question="One.\n\nTwo?")
        assert chat.turn(new).text == lines(full(new), replaces(new, old))

    def test_an_update_before_the_first_answer(self, chat, tea, black):
        chat.messages.append({"role": "user", "content": full(tea)})
        assert chat.turn(black).text == lines(full(black), replaces(black, tea))

    def test_the_wording_is_ones_own(self, store, tea, black):
        template = "{new} statt {old}."
        chat = Chat(store(), update_template=template)
        chat.turn(tea)
        assert chat.turn(black).text == lines(full(black), f"{mark(black)} statt {mark(tea)}.")
        assert chat.turn(black).text == named(black)
        assert chat.turn(tea).text == lines(full(tea), f"{mark(tea)} statt {mark(black)}.")

    @pytest.mark.parametrize("id", ["m1", 7, "x" * 8])
    def test_an_id_that_is_its_own_label(self, chat, cake, id):
        old = {"id": id, "memory": f"Ada drinks green tea.{LONG}\n\nBut not on Sundays."}
        cut = {"id": id, "memory": f"Ada drinks green tea.{LONG}"}
        new = {"id": id, "memory": f"Ada drinks black tea.{LONG}"}
        chat.turn(old, cake)
        assert chat.turn(old, cake).text == named(old, cake)
        assert chat.turn(new, cake).text == lines(full(new), replaces(new, old), named(cake))
        # The marker stands for two texts now, so it names neither.
        assert chat.turn(new, cake).text == lines(full(new), named(cake))
        del chat.messages[3:]
        assert chat.turn(cut, cake).text == lines(full(cut), named(cake))

    def test_where_the_label_is_the_id_what_follows_may_be_of_another_text(self, chat, tea):
        memory = {"id": "m1", "memory": tea["memory"]}
        chat.turn(memory, question="Is that all?")
        assert chat.turn(memory).text == full(memory)


class TestMarkersThatAreAmbiguous:
    def test_a_memory_that_shows_a_marker(self, chat, tea, memory):
        quoting = memory("quote", f"Somebody wrote {full(tea)}")
        chat.turn(tea)
        turn = chat.turn(tea, quoting)
        assert turn.text == lines(full(tea), full(quoting))
        assert turn.plan.outcome is Outcome.LABEL_COLLISION

    def test_a_user_who_writes_under_a_marker(self, chat, tea):
        chat.turn(tea)
        chat.messages.append({"role": "user", "content": f"{mark(tea)} Ada drinks nothing."})
        assert chat.turn(tea).text == full(tea)

    def test_an_annotation_that_begins_with_a_marker_is_none_of_the_blocks(self, store, tea):
        chat = Chat(store(), pilot=ContextPilot(location_template="{source} is above."))
        chat.turn(tea)
        for _ in range(2):
            assert chat.turn(tea).text == f"{mark(tea)} is above."


class TestTheFirstTurn:
    def test_it_is_aligned(self, store, tea, cake, cats):
        plain = store()
        pilot = ContextPilot()
        Chat(plain, pilot=pilot).turn(tea, cake)
        first = Chat(plain, pilot=pilot).turn(cake, cats, tea)
        order = " > ".join(map(mark, (cake, cats, tea)))
        assert first.text == lines(
            full(tea),
            full(cake),
            full(cats),
            f"Please read the context in the following priority order: {order} and answer the question.",
        )
        assert first.plan.outcome is Outcome.ALIGNED
        assert [memory["id"] for memory in first.found["results"]] == [m["id"] for m in (cake, cats, tea)]

    def test_only_prompts_that_begin_alike_are_aligned_with_one_another(self, store, tea, cake):
        plain = store()
        pilot = ContextPilot()
        Chat(plain, pilot=pilot).turn(tea, cake)
        other = Chat(plain, pilot=pilot)
        other.messages = [{"role": "system", "content": "Be polite."}]
        assert other.turn(cake, tea).text == lines(full(cake), full(tea))

    def test_behind_an_answer_the_order_of_relevance_stays(self, store, tea, cake):
        plain = store()
        pilot = ContextPilot()
        for memories in ((tea, cake), (cake, tea)):
            other = Chat(plain, pilot=pilot)
            other.turn(question="Hello")
            assert other.turn(*memories).text == lines(*map(full, memories))

    def test_asked_again_it_is_the_same(self, store, tea, cake, cats):
        plain = store()
        pilot = ContextPilot()
        Chat(plain, pilot=pilot).turn(tea, cake)
        texts = [Chat(plain, pilot=pilot).turn(cats, cake, tea).text for _ in range(3)]
        assert len(set(texts)) == 1

    def test_nothing_found(self, chat):
        assert chat.turn().text == ""
        assert chat.turn().text == ""


class TestPromises:
    def test_inputs_stay_as_they_are(self, chat, tea, cake):
        chat.turn(tea)
        before = copy.deepcopy((chat.messages, tea, cake))
        chat.memory.wrapped.found = {"results": [cake, tea]}
        chat.memory.turn_context("what", chat.messages, **ADA)
        assert (chat.messages, tea, cake) == before

    def test_scores_and_dates_do_not_show(self, store, tea, cake):
        texts = set()
        for score, date in ((0.9, "2026-01-01"), (None, None), (float("nan"), "2026-02-02")):
            chat = Chat(store())
            dated = [{**m, "score": score, "created_at": date, "updated_at": date} for m in (tea, cake)]
            texts.add((chat.turn(*dated).text, chat.turn(*dated).text))
        assert len(texts) == 1

    def test_duplicates_are_written_once(self, chat, tea, cake):
        chat.turn(cake)
        turn = chat.turn(tea, cake, tea)
        assert turn.text == lines(full(tea), named(cake))
        assert turn.plan.duplicates == (2,)
        assert turn.found["results"][2]["contextpilot"]["position"] is None

    def test_a_failure_sends_all_in_full(self, store, tea, cake, caplog):
        def fails(text):
            raise RuntimeError("Ada's secret")

        chat = Chat(store(), pilot=ContextPilot(token_counter=fails))
        with caplog.at_level(logging.WARNING):
            chat.turn(tea)
            turn = chat.turn(cake, tea)
        assert turn.text == lines(full(cake), full(tea))
        assert turn.plan.outcome is Outcome.FAILED
        assert chat.memory.pilot.outcomes[Outcome.FAILED] == 2
        assert "RuntimeError" in caplog.text
        assert "secret" not in caplog.text

    def test_on_error_raise(self, store, tea):
        def fails(text):
            raise RuntimeError("no tokenizer")

        chat = Chat(store(), pilot=ContextPilot(token_counter=fails, on_error="raise"))
        chat.messages += [{"role": "user", "content": full(tea)}, {"role": "assistant", "content": "Yes."}]
        with pytest.raises(RuntimeError, match="no tokenizer"):
            chat.turn(tea)

    @pytest.mark.parametrize("messages", [["hello"], [None], [("user", "hello")]])
    def test_messages_that_are_none_are_refused_before_the_search(self, store, messages):
        plain = store()
        with pytest.raises(TypeError, match=r"messages\[0\] must be a mapping"):
            ContextPilotMemory(plain).turn_context("what", messages, **ADA)
        assert plain.asked == []

    @pytest.mark.parametrize("messages", ["hello", SYSTEM, None])
    def test_what_is_no_list_of_messages_is_refused(self, store, messages):
        with pytest.raises(TypeError, match="messages must be a list of messages"):
            ContextPilotMemory(store()).turn_context("what", messages, **ADA)

    def test_langchains_messages_are_refused_and_read_when_converted(self, chat, tea):
        messages = pytest.importorskip("langchain_core.messages")
        history = [messages.HumanMessage(full(tea)), messages.AIMessage("This.")]
        chat.memory.wrapped.found = {"results": [tea]}
        with pytest.raises(TypeError, match=r"messages\[0\] .* not HumanMessage.*convert_to_openai_messages"):
            chat.memory.turn_context("what", history, **ADA)
        chat.messages = messages.convert_to_openai_messages(history)
        assert chat.turn(tea).text == named(tea)

    def test_llama_indexes_messages_are_refused(self, store):
        llms = pytest.importorskip("llama_index.core.llms")
        with pytest.raises(TypeError, match=r"messages\[1\] .* not ChatMessage: convert"):
            ContextPilotMemory(store()).turn_context("what", [SYSTEM, llms.ChatMessage("Hello")], **ADA)

    def test_answers_of_the_openai_package_are_read(self, chat, tea, cake):
        chat_types = pytest.importorskip("openai.types.chat")
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        chat.messages += [
            {"role": "user", "content": full(tea)},
            chat_types.ChatCompletionMessage(role="assistant", tool_calls=[call]),
            {"role": "tool", "tool_call_id": "1", "content": "Nothing."},
            chat_types.ChatCompletionMessage(role="assistant", content=full(cake)),
        ]
        assert chat.turn(tea, cake).text == lines(named(tea), full(cake))

    async def test_sync_and_async_behave_alike(self, store, async_store, tea, cake, cats):
        sync, twin = Chat(store()), AsyncContextPilotMemory(async_store())
        for memories in ((tea, cake), (cats, tea), ({**tea, "memory": "Ada drinks water."}, cake)):
            messages = list(sync.messages)
            twin.wrapped.found = {"results": [*memories]}
            turn = await twin.turn_context("What do you know?", iter(messages), **ADA)
            assert turn == sync.turn(*memories)

    async def test_an_async_turn_is_written_outside_the_loop(self, async_store, tea):
        threads = set()

        def count(text):
            threads.add(threading.get_ident())
            return len(text)

        pilot = ContextPilot(token_counter=count, on_error="raise")
        messages = [{"role": "user", "content": full(tea)}, {"role": "assistant", "content": "This."}]
        turn = await AsyncContextPilotMemory(async_store(tea), pilot=pilot).turn_context("?", messages, **ADA)
        assert turn.text == named(tea)
        assert threads
        assert threading.get_ident() not in threads


class TestLongChats:
    @pytest.fixture
    def compared(self, monkeypatch):
        """The ids with which texts in view were compared, and these texts."""
        pairs = []

        def labels_of(id):
            labels = block.labels_of(id)

            def recorded(pieces):
                for number, label in enumerate(labels(pieces), 1):
                    pairs.append((id, "".join(pieces[:number])))
                    yield label

            return recorded

        monkeypatch.setattr(view, "labels_of", labels_of)
        return pairs

    def test_a_text_in_view_is_compared_with_no_other_memory(self, chat, memory, compared):
        for number in range(5):
            chat.turn(*(memory(f"{number} {n}", f"Ada said {number} and {n}." + LONG) for n in range(4)))
        assert compared == []
        olds = [memory(name, f"Ada said {name[0]} and {name[2]}." + LONG) for name in ("0 0", "3 2")]
        news = [{**old, "memory": "Ada said nothing." + LONG} for old in olds]
        pairs = zip(news, olds, strict=True)
        assert chat.turn(*news).text == lines(*(lines(full(new), replaces(new, old)) for new, old in pairs))
        assert set(compared) == {(old["id"], old["memory"]) for old in olds}

    def test_what_was_let_go_of_is_compared_with_each_and_nothing_changes(
        self, chat, tea, cake, cats, town, compared, monkeypatch
    ):
        monkeypatch.setattr(found_ids, "_MAX_LABELS", 1)
        black = {**tea, "memory": "Ada drinks black tea." + LONG}
        chat.turn(tea, cake)
        turn = chat.turn(cats, black, town)
        assert turn.text == lines(full(cats), full(black), replaces(black, tea), full(town))
        assert {cats["id"], black["id"]} <= {id for id, _ in compared}
