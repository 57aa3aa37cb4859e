"""Writes down what the official Python SDK makes of the streams in recorded.json.

It prints the file anew: with `python record.py > new.json` a change of the SDK
is a change of the record.
"""

import json
import pathlib

import httpx2
import openai

RECORD = pathlib.Path(__file__).with_name("recorded.json")


def heard(stream):
    """What the SDK's accumulator hands out of a stream, and how it ends."""

    def answer(_):
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=stream.encode())

    client = openai.OpenAI(api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(answer)), max_retries=0)
    told = {"events": [], "text": "", "fault": ""}
    try:
        with client.responses.stream(model="m", input="x") as events:
            for event in events:
                told["events"].append(event.type)
                if event.type == "response.output_text.delta":
                    told["text"] = event.snapshot
            events.get_final_response()
    except Exception as err:  # the kind is what a program can tell
        told["fault"] = type(err).__name__
        if isinstance(err, openai.APIError):
            told["fault"] += ": " + err.message
    return told


rows = json.loads(RECORD.read_text())
for row in rows:
    row["told"] = heard(row["stream"])
print(json.dumps(rows, indent=1, ensure_ascii=False))
