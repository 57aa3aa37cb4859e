"""Plays the features of the Responses API with the official Python SDK."""

import json
import os
import sys

import openai

BASE = os.environ["WEIR_URL"] + "/v1"
client = openai.OpenAI(base_url=BASE, api_key=os.environ["WEIR_API_KEY"], max_retries=0)
poor = openai.OpenAI(base_url=os.environ["WEIR_POOR_URL"] + "/v1", api_key=os.environ["WEIR_POOR_KEY"])  # with its retries
limited = openai.OpenAI(base_url=BASE, api_key=os.environ["WEIR_LIMITED_KEY"], max_retries=0)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "name": "weather", "description": "Weather of a city", "parameters": SCHEMA, "strict": True}
PATCH = {"type": "custom", "name": "patch", "description": "Applies a patch"}


def parts(response, item, part, member):
    return "".join(
        getattr(p, member) for i in response.output if i.type == item for p in i.content or [] if p.type == part
    )


def calls_of(response):
    return [i for i in response.output if i.type in ("function_call", "custom_tool_call")]


def told(response):
    return {
        "text": response.output_text,
        "reasoning": parts(response, "reasoning", "reasoning_text", "text"),
        "refusal": parts(response, "message", "refusal", "refusal"),
        "calls": [f"{c.name} {c.arguments if c.type == 'function_call' else c.input}" for c in calls_of(response)],
        "outcome": response.status,
    }


def stream(model="scripted", **body):
    heard, final = "", None
    with client.responses.create(model=model, stream=True, **body) as events:
        for event in events:
            if event.type == "response.output_text.delta":
                heard += event.delta
            if event.type in ("response.completed", "response.incomplete"):
                final = event.response
    assert final is not None, "the stream has no end"
    assert heard == final.output_text, (heard, final.output_text)
    return final


def helper(**body):
    """The SDK's own accumulator."""
    with client.responses.stream(model="scripted", **body) as events:
        for _ in events:
            pass
        return events.get_final_response()


def loop(prompt, tools):
    items, calls = [{"role": "user", "content": prompt}], []
    while True:
        response = helper(input=items, tools=tools)
        calls += told(response)["calls"]
        if not calls_of(response):
            return {**told(response), "calls": calls}
        items += [i.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for i in response.output]
        items += [{"type": c.type + "_output", "call_id": c.call_id, "output": "done"} for c in calls_of(response)]


def rate_limit():
    limited.responses.create(model="scripted", input="[play text]")
    return told(limited.responses.create(model="scripted", input="[play text]"))


def goes_on():
    first = stream(input="[play twice]")
    return told(stream(input="and then?", previous_response_id=first.id))


def conversation():
    where = client.conversations.create().id
    stream(input="[play twice]", conversation=where)
    return told(stream(input="and then?", conversation=where))


FEATURES = {
    "streamed text": lambda: told(helper(input="[play text]")),
    "text in one document": lambda: told(client.responses.create(model="scripted", input="[play text]")),
    "reasoning": lambda: told(helper(input="[play reasoning]")),
    "reasoning, text and a call in one turn": lambda: told(helper(input="[play mixed]", tools=[WEATHER])),
    "a tool loop": lambda: loop("[play loop]", [WEATHER]),
    "parallel calls": lambda: loop("[play parallel]", [WEATHER]),
    "custom tools": lambda: loop("[play custom]", [PATCH]),
    "refusals": lambda: told(helper(input="[play refusal]")),
    "an answer that is cut off": lambda: told(stream(input="[play length]")),
    "an answer without a word": lambda: told(stream(input="[play nothing]")),
    "an engine that breaks off": lambda: told(stream(model="flaky", input="[play broken]")),
    "an engine that reports an error": lambda: told(stream(model="flaky", input="[play fault]")),
    "a rate limit": rate_limit,
    "no credit left": lambda: told(poor.responses.create(model="scripted", input="[play text]")),
    "a model at capacity": lambda: told(client.responses.create(model="busy", input="[play busy]")),
    "going on from a response": goes_on,
    "a conversation": conversation,
}

for feature in sys.argv[1:]:
    try:
        answer = FEATURES[feature]()
    except Exception as err:  # an error is an answer too: clients must be able to tell what went wrong
        answer = {"outcome": "error", "message": str(err), "code": getattr(err, "code", None), "status": getattr(err, "status_code", 0)}
    print(json.dumps({"feature": feature, **answer}))
