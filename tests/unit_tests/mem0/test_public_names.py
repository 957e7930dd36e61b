import contextpilot_integrations.mem0 as package


def test_all_names_are_there():
    assert all(hasattr(package, name) for name in package.__all__)
    assert package.__all__ == [
        "UPDATE_TEMPLATE",
        "AsyncContextPilotMemory",
        "ContextPilotMemory",
        "MemoryEntry",
        "PlanEntry",
        "TurnContext",
        "format_memories",
    ]
