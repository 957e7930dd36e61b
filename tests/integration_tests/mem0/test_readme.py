"""The README's code for Mem0, as it stands, on real Mem0."""

from types import SimpleNamespace

from readme_code import code_under


def test_the_code_runs(settings, tmp_path, monkeypatch):
    from mem0 import Memory

    config = settings("faiss", tmp_path)
    known = Memory.from_config(config)
    for fact in ("Ada rides a cargo bike to work every day.", "Ada keeps two cats in a flat by the harbour."):
        known.add(fact, user_id="ada", infer=False)
    monkeypatch.setattr(Memory, "from_config", lambda config: known)
    choice = SimpleNamespace(message=SimpleNamespace(content="An answer."))
    completions = SimpleNamespace(create=lambda **request: SimpleNamespace(choices=[choice]))
    names = {
        "your_config": config,
        "your_client": SimpleNamespace(chat=SimpleNamespace(completions=completions)),
        "your_questions": ["Which bike does Ada ride to work?", "Does Ada ride a bike to work?"],
    }
    (code,) = code_under("Mem0")
    exec(code, names)
    first, second = (message["content"] for message in names["messages"] if message["role"] == "user")
    assert "Ada rides a cargo bike" in first
    assert "Ada rides a cargo bike" not in second
    assert "in the previous conversation" in second
