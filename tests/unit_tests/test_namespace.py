import logging

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace

BLOCKS = [ContextBlock(id) for id in (1, 2)]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_preamble_counts_by_its_digest_and_is_not_shown():
    namespace = Namespace(tenant="acme", preamble="You are helpful.")
    assert namespace == Namespace(tenant="acme", preamble="You are helpful.")
    assert namespace != Namespace(tenant="acme", preamble="You are terse.")
    assert namespace != Namespace(tenant="acme")
    assert "helpful" not in repr(namespace)
    assert namespace.preamble_digest in repr(namespace)


@pytest.mark.parametrize("field", ["endpoint", "model", "tenant", "preamble"])
def test_each_field_keeps_requests_apart(field):
    pilot = ContextPilot()
    pilot.prepare(BLOCKS, namespace=Namespace(**{field: "a"}))
    assert pilot.prepare(BLOCKS, namespace=Namespace(**{field: "b"})).expected_cached_blocks == 0
    assert pilot.prepare(BLOCKS, namespace=Namespace(**{field: "a"})).expected_cached_blocks == 2


@pytest.mark.parametrize("field", ["endpoint", "model", "tenant", "preamble"])
def test_a_field_of_another_type_is_refused(field):
    with pytest.raises(TypeError, match=f"{field} must be a str, not int"):
        Namespace(**{field: 1})


def test_a_preamble_that_changes_on_every_request_is_warned_of_once(caplog):
    pilot = ContextPilot()
    for minute in range(10, 30):
        pilot.prepare(BLOCKS, namespace=Namespace(preamble=f"It is 12:{minute}. Answer."))
    (warning,) = warnings(caplog)
    assert "differs at character 10 ('3', before it was '2')" in warning
    assert "Answer" not in warning


def test_preambles_that_come_back_are_nothing_to_warn_of(caplog):
    pilot = ContextPilot()
    for request in range(40):
        pilot.prepare(BLOCKS, namespace=Namespace(preamble=f"template {request % 3}"))
    assert warnings(caplog) == []


def test_a_preamble_that_stays_is_nothing_to_warn_of_when_all_is_forgotten(caplog):
    pilot = ContextPilot()
    for _ in range(10):
        pilot.prepare(BLOCKS, namespace=Namespace(preamble="template"))
        pilot.clear()
    assert warnings(caplog) == []


def test_many_tenants_are_nothing_to_warn_of(caplog):
    pilot = ContextPilot(max_namespaces=4)
    for tenant in range(40):
        pilot.prepare(BLOCKS, namespace=Namespace(tenant=str(tenant), preamble=f"for {tenant}"))
    assert warnings(caplog) == []


def test_a_preamble_that_only_grows_differs_at_its_old_end(caplog):
    pilot = ContextPilot()
    for length in range(1, 6):
        pilot.prepare(BLOCKS, namespace=Namespace(preamble="x" * length))
    (warning,) = warnings(caplog)
    assert "differs at character 3 ('x', before it was '')" in warning


def test_the_number_of_namespaces_is_bounded():
    pilot = ContextPilot(max_namespaces=2)
    for tenant in ("a", "b", "a", "c"):
        pilot.prepare(BLOCKS, namespace=Namespace(tenant=tenant))
    assert pilot.prepare(BLOCKS, namespace=Namespace(tenant="a")).expected_cached_blocks == 2
    assert pilot.prepare(BLOCKS, namespace=Namespace(tenant="b")).expected_cached_blocks == 0
