import copy
import logging
import pickle

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace, Outcome, Plan


def blocks(*ids):
    return [ContextBlock(id) for id in ids]


def failing(text):
    raise RuntimeError(f"cannot count {text}")


class TestPrepare:
    def test_a_plan_has_everything_that_is_needed_to_send(self):
        pilot = ContextPilot()
        pilot.prepare([ContextBlock("a", "first"), ContextBlock("b", "second")])
        plan = pilot.prepare(
            [ContextBlock("c", "third"), ContextBlock("b", "second"), ContextBlock("a", "first")],
            namespace=Namespace(),
            request_id="r2",
        )
        assert plan == Plan(
            blocks=(ContextBlock("a", "first"), ContextBlock("b", "second"), ContextBlock("c", "third")),
            ranks=(2, 1, 0),
            duplicates=(),
            search_path=(0, 0),
            expected_cached_blocks=2,
            expected_cached_tokens=4,
            order_annotation=(
                "Please read the context in the following priority order: [CB_c] > [CB_b] > [CB_a] "
                "and answer the question."
            ),
            outcome=Outcome.ALIGNED,
            namespace=Namespace(),
            request_id="r2",
        )
        assert plan.render() == "[CB_a] first\n\n[CB_b] second\n\n[CB_c] third"

    def test_the_order_retrieved_needs_no_annotation(self):
        plan = ContextPilot().prepare(blocks(1, 2))
        assert (plan.outcome, plan.order_annotation) == (Outcome.UNCHANGED, "")

    def test_nothing_retrieved(self):
        plan = ContextPilot().prepare([])
        assert (plan.blocks, plan.ranks, plan.search_path, plan.render()) == ((), (), (), "")

    def test_duplicates_collapse_and_the_plan_says_so(self):
        plan = ContextPilot().prepare(blocks(7, 8, 7, 9, 8))
        assert plan.block_ids == (7, 8, 9)
        assert plan.ranks == (0, 1, 3)
        assert plan.duplicates == (2, 4)

    def test_tokens_decide_which_path_is_worth_more(self):
        pilot = ContextPilot(token_counter=len)
        pilot.prepare([ContextBlock("a", "x"), ContextBlock("b", "x")])
        pilot.prepare([ContextBlock("c", "x" * 50)])
        plan = pilot.prepare([ContextBlock("a", "x"), ContextBlock("b", "x"), ContextBlock("c", "x" * 50)])
        assert plan.block_ids == ("c", "a", "b")
        assert plan.expected_cached_tokens == 50

    def test_a_block_without_text_weighs_one(self):
        pilot = ContextPilot(token_counter=failing, on_error="raise")
        pilot.prepare(blocks(1, 2))
        assert pilot.prepare(blocks(1, 2)).expected_cached_tokens == 2

    def test_any_iterable_will_do(self):
        pilot = ContextPilot()
        assert pilot.prepare(block for block in blocks(1, 2)).block_ids == (1, 2)
        batch = pilot.prepare_batch(iter(blocks(id)) for id in (1, 2))
        assert [plan.block_ids for plan in batch.plans] == [(1,), (2,)]

    def test_a_counter_may_return_a_float(self):
        pilot = ContextPilot(token_counter=lambda text: len(text) / 2, on_error="raise")
        pilot.prepare([ContextBlock("a", "text")])
        batch = pilot.prepare_batch([[ContextBlock("a", "text")]])
        assert batch.plans[0].expected_cached_tokens == 2

    def test_what_is_no_block_is_refused(self):
        with pytest.raises(TypeError, match="ContextBlock objects, not str"):
            ContextPilot().prepare(["text"])
        with pytest.raises(TypeError, match="ContextBlock objects, not str"):
            ContextPilot().prepare_batch([["text"]])


class TestBatch:
    def test_each_plan_belongs_to_its_own_request_on_a_warm_index_too(self):
        pilot = ContextPilot()
        pilot.prepare(blocks(3, 9))
        contexts = [blocks(1, 2, 3), blocks(7), blocks(3, 2, 1), blocks(9, 3), []]
        batch = pilot.prepare_batch(contexts, request_ids=["a", "b", "c", "d", "e"])
        for plan, context, request_id in zip(batch.plans, contexts, "abcde", strict=True):
            assert set(plan.blocks) == set(context)
            assert [context[rank] for rank in plan.ranks] == list(plan.blocks)
            assert plan.request_id == request_id
        assert sorted(batch.schedule) == [0, 1, 2, 3, 4]
        assert batch.plans[3].expected_cached_blocks == 2

    def test_requests_that_share_run_back_to_back(self):
        batch = ContextPilot().prepare_batch([blocks(1, 2), blocks(5, 6), blocks(1, 3), blocks(5, 7)])
        assert batch.schedule == (0, 2, 1, 3)

    def test_search_paths_lead_to_the_requests_nodes(self):
        pilot = ContextPilot()
        batch = pilot.prepare_batch([blocks(1, 2, 3), blocks(1, 2), blocks(2, 1, 9), blocks(4)])
        with pilot.index() as index:
            for plan in batch.plans:
                assert index.traverse(plan.search_path).sequence == tuple(b.digest for b in plan.blocks)

    def test_an_empty_batch(self):
        batch = ContextPilot().prepare_batch([])
        assert (batch.plans, batch.schedule) == ((), ())

    def test_as_many_ids_as_contexts(self):
        with pytest.raises(ValueError, match="request_ids has 1 ids for 2 contexts"):
            ContextPilot().prepare_batch([blocks(1), blocks(2)], request_ids=["a"])

    def test_a_capacity_smaller_than_the_batch(self):
        pilot = ContextPilot(capacity=4)
        batch = pilot.prepare_batch([blocks(1, 2, 3), blocks(4, 5, 6), blocks(1, 2, 7), blocks(4, 5, 8)])
        assert [plan.expected_cached_blocks for plan in batch.plans] == [0, 0, 2, 2]
        with pilot.index() as index:
            index.check_integrity()


class TestMaxDisplacement:
    def test_a_block_moves_no_further_than_allowed(self):
        orders = []
        for limit in (0, 1, 2, None):
            pilot = ContextPilot(max_displacement=limit)
            pilot.prepare(blocks(4, 3))
            orders.append(pilot.prepare(blocks(1, 2, 3, 4)).block_ids)
        assert orders == [(1, 2, 3, 4), (1, 3, 2, 4), (3, 4, 1, 2), (4, 3, 1, 2)]

    def test_the_best_cached_sequence_within_the_limit_is_taken(self):
        for limit, cached, order in ((None, 3, (5, 1, 2, 3, 4)), (2, 2, (2, 1, 5, 3, 4))):
            pilot = ContextPilot(max_displacement=limit)
            pilot.prepare(blocks(5, 1, 2))
            pilot.prepare(blocks(2, 1))
            plan = pilot.prepare(blocks(1, 2, 3, 4, 5))
            assert (plan.expected_cached_blocks, plan.block_ids) == (cached, order)

    def test_none_moves_at_zero_in_a_batch_either(self):
        contexts = [blocks(1, 2, 3), blocks(3, 2, 1), blocks(2, 3)]
        batch = ContextPilot(max_displacement=0).prepare_batch(contexts)
        assert [list(plan.blocks) for plan in batch.plans] == contexts


class TestEviction:
    def test_what_the_engine_evicted_is_not_expected(self):
        pilot = ContextPilot()
        pilot.prepare(blocks(1, 2), request_id="a")
        assert pilot.evict("a")
        assert not pilot.evict("a")
        assert pilot.prepare(blocks(1, 2)).expected_cached_blocks == 0

    def test_in_its_own_namespace_only(self):
        pilot = ContextPilot()
        pilot.prepare(blocks(1), namespace=Namespace(tenant="a"), request_id="r")
        assert not pilot.evict("r", namespace=Namespace(tenant="b"))
        assert not pilot.evict("r")
        assert pilot.evict("r", namespace=Namespace(tenant="a"))


class TestNeverWorse:
    given = (ContextBlock("a", "some text"), ContextBlock("b", "text"), ContextBlock("a", "some text"))

    @pytest.mark.parametrize("batch", [False, True])
    def test_what_fails_goes_out_as_it_was_given_with_a_warning(self, batch, caplog):
        pilot = ContextPilot(token_counter=failing)
        plan = pilot.prepare_batch([self.given]).plans[0] if batch else pilot.prepare(self.given)
        assert plan.blocks == self.given
        assert plan.ranks == (0, 1, 2)
        assert plan.outcome is Outcome.FAILED
        assert pilot.outcomes[Outcome.FAILED] == 1
        (record,) = caplog.records
        assert "RuntimeError" in record.getMessage()
        assert "some text" not in caplog.text

    def test_ignore_does_not_log(self, caplog):
        pilot = ContextPilot(token_counter=failing, on_error="ignore")
        assert pilot.prepare(self.given).outcome is Outcome.FAILED
        assert caplog.records == []

    def test_raise_raises(self):
        pilot = ContextPilot(token_counter=failing, on_error="raise")
        with pytest.raises(RuntimeError, match="cannot count"):
            pilot.prepare(self.given)
        with pytest.raises(RuntimeError, match="cannot count"):
            pilot.prepare_batch([self.given])


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"capacity": 0}, "capacity must be at least 1"),
            ({"max_displacement": -1}, "max_displacement must be at least 0"),
            ({"max_namespaces": 0}, "max_namespaces must be at least 1"),
            ({"on_error": "explode"}, 'on_error must be "warn", "ignore" or "raise"'),
            ({"device": "gpu9"}, "unknown device 'gpu9'"),
            ({"device": "mps"}, "unknown device 'mps'"),
            ({"device": None}, "unknown device None"),
        ],
    )
    def test_a_bad_one_is_named(self, settings, message):
        with pytest.raises(ValueError, match=message):
            ContextPilot(**settings)

    def test_a_device_that_is_not_there(self, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        with pytest.raises(ValueError, match="'cuda' is not available here"):
            ContextPilot(device="cuda")

    @pytest.mark.parametrize("travel", [lambda pilot: pickle.loads(pickle.dumps(pilot)), copy.deepcopy])
    def test_settings_travel_and_the_index_does_not(self, travel):
        pilot = ContextPilot(capacity=5, token_counter=len, order_template="{order}!")
        pilot.prepare([ContextBlock("a", "text")])
        other = travel(pilot)
        assert other.prepare([ContextBlock("a", "text")]).expected_cached_blocks == 0
        plan = other.prepare([ContextBlock("b", "text"), ContextBlock("a", "text")])
        assert plan.order_annotation == "[CB_b] > [CB_a]!"
        with other.index() as index:
            assert index.capacity == 5


def test_nothing_is_logged_at_warning_level_in_normal_use(caplog):
    pilot = ContextPilot()
    pilot.prepare_batch([blocks(1, 2), blocks(2, 1)])
    pilot.prepare(blocks(2, 3))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
