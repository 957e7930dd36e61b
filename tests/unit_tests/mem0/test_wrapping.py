"""The wrapper is the memory: whatever it does not name itself is Mem0's."""

import copy

import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.mem0 import AsyncContextPilotMemory, ContextPilotMemory


def test_methods_that_nobody_knew_of_are_forwarded(store):
    plain = store()
    assert ContextPilotMemory(plain).of_a_later_version(1, two=2) == (plain, (1,), {"two": 2})
    assert "of_a_later_version" in dir(ContextPilotMemory(plain))


def test_what_is_set_is_set_on_the_memory(store):
    plain = store()
    remembers = ContextPilotMemory(plain)
    remembers.custom_instructions = "Remember food only."
    assert plain.custom_instructions == "Remember food only."


@pytest.mark.parametrize("name", ["pilot", "wrapped", "search", "turn_context"])
def test_what_is_the_wrappers_own_cannot_be_set(store, name):
    plain = store()
    remembers = ContextPilotMemory(plain)
    before = dict(vars(plain))
    with pytest.raises(AttributeError, match=name):
        setattr(remembers, name, None)
    assert vars(plain) == before


def test_what_mem0_does_not_have_is_missing(store):
    with pytest.raises(AttributeError, match="'Store' object has no attribute 'nothing'"):
        ContextPilotMemory(store()).nothing  # noqa: B018


def test_arguments_reach_mem0_as_they_came(store):
    plain, options = store(), object()
    remembers = ContextPilotMemory(plain)
    remembers.search("what", options, top_k=3, filters={"user_id": "ada"})
    remembers.turn_context("what", [], options, top_k=3, filters={"user_id": "ada"})
    asked = ("what", (options,), {"top_k": 3, "filters": {"user_id": "ada"}})
    assert plain.asked == [asked, asked]


def test_mem0s_errors_go_through(store):
    class Refuses(store):
        def search(self, query, **kwargs):
            raise ValueError("filters must contain at least one of: user_id, agent_id, run_id")

    for call in (ContextPilotMemory(Refuses()).search, ContextPilotMemory(Refuses()).turn_context):
        with pytest.raises(ValueError, match="filters must contain"):
            call("what")


async def test_each_kind_of_memory_has_its_wrapper(store, async_store):
    with pytest.raises(TypeError, match="AsyncStore goes into AsyncContextPilotMemory"):
        ContextPilotMemory(async_store())
    for call in (AsyncContextPilotMemory(store()).search, AsyncContextPilotMemory(store()).turn_context):
        with pytest.raises(TypeError, match=r"Store goes into ContextPilotMemory: .* no awaitable"):
            await call("what")
    with pytest.raises(TypeError, match="not dict"):
        ContextPilotMemory({})


async def test_an_async_search_may_be_a_plain_function(async_store, memory):
    class Decorated(async_store):
        def search(self, *args, **kwargs):
            return super().search(*args, **kwargs)

    plain = Decorated(memory("tea", "Ada drinks tea."))
    remembers = AsyncContextPilotMemory(plain, pilot=ContextPilot(on_error="raise"))
    assert (await remembers.search("what"))["results"][0]["contextpilot"]["rank"] == 0
    assert "Ada drinks tea." in (await remembers.turn_context("what")).text
    for call in (ContextPilotMemory(plain).search, ContextPilotMemory(plain).turn_context):
        with pytest.raises(TypeError, match=r"Decorated goes into AsyncContextPilotMemory: .* an awaitable"):
            call("what")


@pytest.mark.parametrize("template", ["{new}", "replaces {old}", "{new}\nreplaces {old}", None])
def test_an_update_template_names_both_in_one_line(store, template):
    with pytest.raises(ValueError, match="update_template must be"):
        ContextPilotMemory(store(), update_template=template)


def test_a_copy_shares_memory_and_pilot(store):
    plain = store()
    remembers = ContextPilotMemory(plain)
    twin = copy.copy(remembers)
    assert twin.wrapped is plain
    assert twin.pilot is remembers.pilot


def test_one_that_was_never_made_has_nothing():
    unmade = ContextPilotMemory.__new__(ContextPilotMemory)
    with pytest.raises(AttributeError, match="no attribute '_memory'"):
        unmade.get_all()


def test_the_pilot_is_shared(store, memory):
    pilot = ContextPilot()
    tea, cake = memory("tea", "Ada drinks tea."), memory("cake", "Ada bakes cake.")
    ContextPilotMemory(store(tea, cake), pilot=pilot).search("what", filters={"user_id": "ada"})
    found = ContextPilotMemory(store(cake, tea), pilot=pilot).search("what", filters={"user_id": "ada"})
    assert found["contextpilot"]["order"] == [1, 0]


def test_what_is_shown_of_it_holds_no_text(store, memory):
    remembers = ContextPilotMemory(store(memory("tea", "Ada drinks tea.")), preamble="Be brief.")
    turn = remembers.turn_context("what", filters={"user_id": "ada"})
    assert repr(remembers) == "ContextPilotMemory(Store)"
    assert "tea" not in repr(turn)
