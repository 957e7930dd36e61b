"""A chat of ten turns on vLLM: the turn before is cached, and what stands above is not sent again."""

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.annotation import LOCATION_TEMPLATE
from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.demo.handbook import questions
from contextpilot_integrations.engines import read_usage

TURNS = 10


def test_nine_tenths_of_the_turn_before_are_cached(client, contexts, tokenizer):
    pilot = ContextPilot(on_error="raise")
    asked = [place for place, question in enumerate(questions()) if question.theme == "bicycle hire"]
    messages = [{"role": "system", "content": "Answer from the handbook, in a few words."}]
    before = 0
    for place in [*asked, *asked][:TURNS]:
        blocks, question = contexts[place], questions()[place].question
        content = "\n\n".join([*(block.render() for block in blocks), question])
        messages.append({"role": "user", "content": content})
        sent = rewrite(messages, pilot=pilot, blocks=blocks).messages
        answer = client.chat.completions.create(model="tiny", messages=sent, max_tokens=8, temperature=0)
        usage = read_usage(answer)
        assert usage.cached_tokens >= 0.9 * before
        before = usage.prompt_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    annotation = LOCATION_TEMPLATE.replace("{source}", f"[CB_{blocks[0].label}]")
    assert sent[-1]["content"].startswith(annotation)
    chat = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    assert before < 0.5 * len(tokenizer.encode(chat, add_special_tokens=False))
