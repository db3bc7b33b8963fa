"""Golden table of bodies that a mirror refuses: what is sent, and the code and pointer of the answer."""

from __future__ import annotations

import json
from typing import Any

CHAT = "chat/completions"
COMPLETIONS = "completions"
SECRET = "tell-nobody-3f81"

USER = {"role": "user", "content": SECRET}


def chat(**fields: Any) -> bytes:
    """A chat body that is legal but for the given fields."""
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def messages(*items: Any) -> bytes:
    return json.dumps({"messages": list(items)}).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"prompt": SECRET, **fields}).encode()


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tooled(**function: Any) -> bytes:
    """A chat with one tool that is legal but for the given fields of its function."""
    return chat(tools=[TOOL | {"function": TOOL["function"] | function}])  # type: ignore[operator]


def called(**call: Any) -> bytes:
    """A chat with one call that is legal but for the given fields."""
    return messages({"role": "assistant", "content": None, "tool_calls": [CALL | call]})


def replied(**reply: Any) -> bytes:
    return messages(USER, {"role": "tool", "tool_call_id": "1", "content": SECRET} | reply)


def schema(schema: Any) -> bytes:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def deep(levels: int) -> dict[str, Any]:
    """A schema of nested objects."""
    found: dict[str, Any] = {}
    for _ in range(levels):
        found = {"properties": {"a": found}}
    return found


# name, endpoint, body, code, pointer
BAD: list[tuple[str, str, bytes, str, str]] = [
    ("empty body", CHAT, b"", "invalid_request", ""),
    ("not JSON", CHAT, b"tell-nobody-3f81", "invalid_request", ""),
    ("cut short", CHAT, chat()[:-1], "invalid_request", ""),
    ("trailing garbage", CHAT, chat() + b"tell-nobody-3f81", "invalid_request", ""),
    ("null", CHAT, b"null", "invalid_request", ""),
    ("a list", CHAT, b"[" + chat() + b"]", "invalid_request", ""),
    ("a string", CHAT, b'"tell-nobody-3f81"', "invalid_request", ""),
    ("a raw NUL byte", CHAT, b'{"messages":[{"role":"user","content":"a\x00b"}]}', "invalid_request", ""),
    ("latin-1", CHAT, '{"messages":[{"role":"user","content":"é"}]}'.encode("latin-1"), "invalid_request", ""),
    ("UTF-16 with BOM", CHAT, chat().decode().encode("utf-16"), "invalid_request", ""),
    ("UTF-8 with BOM", CHAT, b"\xef\xbb\xbf" + chat(), "invalid_request", ""),
    ("NaN", CHAT, chat()[:-1] + b',"temperature":NaN}', "invalid_request", ""),
    ("a huge integer", CHAT, chat()[:-1] + b',"seed":' + b"9" * 5000 + b"}", "invalid_request", ""),
    ("nested too deeply", CHAT, b'{"metadata":' + b"[" * 30_000 + b"]" * 30_000 + b"}", "invalid_request", ""),
    (
        "lone surrogate",
        CHAT,
        b'{"messages":[{"role":"user","content":"ok"},{"role":"user","content":"\\ud800 tell-nobody-3f81"}]}',
        "invalid_request",
        "/messages/1/content",
    ),
    ("lone surrogate in a key", CHAT, chat()[:-1] + b',"metadata":{"\\udc00":1}}', "invalid_request", "/metadata"),
    (
        "lone surrogate behind a slash",
        CHAT,
        chat()[:-1] + b',"metadata":{"a/b~":"\\udc00"}}',
        "invalid_request",
        "/metadata/a~1b~0",
    ),
    ("messages missing", CHAT, b"{}", "invalid_request", "/messages"),
    ("messages null", CHAT, b'{"messages":null}', "invalid_request", "/messages"),
    ("messages empty", CHAT, messages(), "invalid_request", "/messages"),
    ("messages a string", CHAT, b'{"messages":"tell-nobody-3f81"}', "invalid_request", "/messages"),
    ("a message that is a string", CHAT, messages(USER, SECRET), "invalid_request", "/messages/1"),
    ("role missing", CHAT, messages({"content": SECRET}), "invalid_request", "/messages/0/role"),
    ("role unknown", CHAT, messages({"role": SECRET, "content": "x"}), "invalid_request", "/messages/0/role"),
    ("role a list", CHAT, messages({"role": ["user"], "content": "x"}), "invalid_request", "/messages/0/role"),
    ("content missing", CHAT, messages({"role": "user"}), "invalid_request", "/messages/0/content"),
    ("content null", CHAT, messages({"role": "assistant", "content": None}), "invalid_request", "/messages/0/content"),
    ("content a number", CHAT, messages({"role": "user", "content": 7}), "invalid_request", "/messages/0/content"),
    (
        "content an object",
        CHAT,
        messages({"role": "user", "content": {"text": SECRET}}),
        "invalid_request",
        "/messages/0/content",
    ),
    (
        "content in parts",
        CHAT,
        messages({"role": "user", "content": [{"type": "text", "text": SECRET}]}),
        "unsupported_request",
        "/messages/0/content",
    ),
    (
        "an image",
        CHAT,
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"https://example.org/{SECRET}"}}]}),
        "unsupported_request",
        "/messages/0/content",
    ),
    (
        "a tool's reply to nothing",
        CHAT,
        messages(USER, {"role": "tool", "content": SECRET}),
        "invalid_request",
        "/messages/1/tool_call_id",
    ),
    ("a tool's reply of null", CHAT, messages({"role": "tool", "tool_call_id": "1"}), "invalid_request", "/messages/0/content"),
    ("a tool's reply with a long name", CHAT, replied(name="x" * 200), "invalid_request", "/messages/1/name"),
    ("a tool call without a type", CHAT, called(type=None), "invalid_request", "/messages/0/tool_calls/0/type"),
    ("a tool call of another type", CHAT, called(type="custom"), "unsupported_request", "/messages/0/tool_calls/0/type"),
    ("a tool call without an id", CHAT, called(id=None), "invalid_request", "/messages/0/tool_calls/0/id"),
    ("a tool call with more", CHAT, called(extra=SECRET), "unsupported_request", "/messages/0/tool_calls/0/extra"),
    (
        "arguments that are an object",
        CHAT,
        called(function={"name": "f", "arguments": {}}),
        "invalid_request",
        "/messages/0/tool_calls/0/function/arguments",
    ),
    (
        "tool calls that are a string",
        CHAT,
        messages(USER | {"role": "assistant", "tool_calls": SECRET}),
        "invalid_request",
        "/messages/0/tool_calls",
    ),
    ("a user who calls tools", CHAT, messages(USER | {"tool_calls": [1]}), "invalid_request", "/messages/0/tool_calls"),
    (
        "a function message",
        CHAT,
        messages({"role": "function", "name": "f", "content": SECRET}),
        "unsupported_request",
        "/messages/0",
    ),
    ("prompt in a chat", CHAT, chat(prompt=SECRET), "invalid_request", "/prompt"),
    ("temperature below 0", CHAT, chat(temperature=-0.1), "invalid_request", "/temperature"),
    ("temperature above 2", CHAT, chat(temperature=2.1), "invalid_request", "/temperature"),
    ("temperature infinite", CHAT, chat()[:-1] + b',"temperature":1e999}', "invalid_request", "/temperature"),
    ("temperature a string", CHAT, chat(temperature="1"), "invalid_request", "/temperature"),
    ("temperature a boolean", CHAT, chat(temperature=True), "invalid_request", "/temperature"),
    ("top_p 0", CHAT, chat(top_p=0), "invalid_request", "/top_p"),
    ("top_p above 1", CHAT, chat(top_p=1.01), "invalid_request", "/top_p"),
    ("top_k below -1", CHAT, chat(top_k=-2), "invalid_request", "/top_k"),
    ("top_k a fraction", CHAT, chat(top_k=1.5), "invalid_request", "/top_k"),
    ("max_tokens 0", CHAT, chat(max_tokens=0), "invalid_request", "/max_tokens"),
    ("max_tokens a fraction", CHAT, chat(max_tokens=1.5), "invalid_request", "/max_tokens"),
    ("max_tokens too large", CHAT, chat(max_tokens=2**31), "invalid_request", "/max_tokens"),
    ("max_completion_tokens negative", CHAT, chat(max_completion_tokens=-1), "invalid_request", "/max_completion_tokens"),
    ("two different limits", CHAT, chat(max_tokens=5, max_completion_tokens=6), "invalid_request", "/max_completion_tokens"),
    ("seed too large", CHAT, chat(seed=2**63), "invalid_request", "/seed"),
    ("seed a string", CHAT, chat(seed="1"), "invalid_request", "/seed"),
    ("stop a number", CHAT, chat(stop=1), "invalid_request", "/stop"),
    ("stop empty", CHAT, chat(stop=""), "invalid_request", "/stop"),
    ("stop with an empty string", CHAT, chat(stop=["a", ""]), "invalid_request", "/stop/1"),
    ("too many stops", CHAT, chat(stop=["a"] * 17), "invalid_request", "/stop"),
    ("stream a string", CHAT, chat(stream="true"), "invalid_request", "/stream"),
    ("n 0", CHAT, chat(n=0), "invalid_request", "/n"),
    ("n 129", CHAT, chat(n=129), "invalid_request", "/n"),
    ("n true", CHAT, chat(n=True), "invalid_request", "/n"),
    ("min_p above 1", CHAT, chat(min_p=1.5), "invalid_request", "/min_p"),
    ("typical_p 0", CHAT, chat(typical_p=0), "invalid_request", "/typical_p"),
    ("repetition_penalty 0", CHAT, chat(repetition_penalty=0), "invalid_request", "/repetition_penalty"),
    ("presence_penalty above 2", CHAT, chat(presence_penalty=2.5), "invalid_request", "/presence_penalty"),
    ("frequency_penalty a string", CHAT, chat(frequency_penalty=SECRET), "invalid_request", "/frequency_penalty"),
    ("min_tokens over the limit", CHAT, chat(max_tokens=4, min_tokens=5), "invalid_request", "/min_tokens"),
    ("min_tokens negative", CHAT, chat(min_tokens=-1), "invalid_request", "/min_tokens"),
    ("stop_token_ids a number", CHAT, chat(stop_token_ids=5), "invalid_request", "/stop_token_ids"),
    ("a stop id that is a string", CHAT, chat(stop_token_ids=[5, SECRET]), "invalid_request", "/stop_token_ids/1"),
    ("a stop id below 0", CHAT, chat(stop_token_ids=[-1]), "invalid_request", "/stop_token_ids/0"),
    ("ignore_eos in words", CHAT, chat(ignore_eos="yes"), "invalid_request", "/ignore_eos"),
    ("bad_words a string", CHAT, chat(bad_words=SECRET), "invalid_request", "/bad_words"),
    ("an empty bad word", CHAT, chat(bad_words=["a", ""]), "invalid_request", "/bad_words/1"),
    ("logit_bias a list", CHAT, chat(logit_bias=[[5, 1]]), "invalid_request", "/logit_bias"),
    ("a biased word", CHAT, chat(logit_bias={"hello": 1}), "invalid_request", "/logit_bias/hello"),
    ("a biased id written twice", CHAT, chat(logit_bias={"05": 1}), "invalid_request", "/logit_bias/05"),
    ("a bias above 100", CHAT, chat(logit_bias={"5": 101}), "invalid_request", "/logit_bias/5"),
    ("a bias that is a boolean", CHAT, chat(logit_bias={"5": True}), "invalid_request", "/logit_bias/5"),
    ("top_logprobs alone", CHAT, chat(top_logprobs=3), "invalid_request", "/top_logprobs"),
    ("too many top_logprobs", CHAT, chat(logprobs=True, top_logprobs=21), "invalid_request", "/top_logprobs"),
    ("logprobs a number in a chat", CHAT, chat(logprobs=3), "invalid_request", "/logprobs"),
    ("tools that are an object", CHAT, chat(tools={}), "invalid_request", "/tools"),
    ("too many tools", CHAT, chat(tools=[TOOL] * 129), "invalid_request", "/tools"),
    ("a tool that is a string", CHAT, chat(tools=[SECRET]), "invalid_request", "/tools/0"),
    ("a tool without a function", CHAT, chat(tools=[{"type": "function"}]), "invalid_request", "/tools/0/function"),
    ("a tool of another type", CHAT, chat(tools=[{"type": "web_search"}]), "unsupported_request", "/tools/0/type"),
    ("a tool without a name", CHAT, tooled(name=None), "invalid_request", "/tools/0/function/name"),
    ("a tool with a long name", CHAT, tooled(name="x" * 129), "invalid_request", "/tools/0/function/name"),
    ("a tool with more", CHAT, tooled(defer=True), "unsupported_request", "/tools/0/function/defer"),
    ("a strictness in words", CHAT, tooled(strict="yes"), "invalid_request", "/tools/0/function/strict"),
    ("two tools of one name", CHAT, chat(tools=[TOOL, TOOL]), "invalid_request", "/tools/1/function/name"),
    ("parameters that are a list", CHAT, tooled(parameters=[]), "invalid_request", "/tools/0/function/parameters"),
    (
        "parameters from elsewhere",
        CHAT,
        tooled(parameters={"properties": {"a": {"$ref": f"http://127.0.0.1/{SECRET}"}}}),
        "invalid_request",
        "/tools/0/function/parameters/properties/a",
    ),
    ("tool_choice without tools", CHAT, chat(tool_choice="auto"), "invalid_request", "/tool_choice"),
    ("tool_choice unknown", CHAT, chat(tools=[TOOL], tool_choice=SECRET), "invalid_request", "/tool_choice"),
    (
        "tool_choice of an unknown tool",
        CHAT,
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": SECRET}}),
        "invalid_request",
        "/tool_choice/function/name",
    ),
    ("allowed tools", CHAT, chat(tools=[TOOL], tool_choice={"type": "allowed_tools"}), "unsupported_request", "/tool_choice"),
    ("response_format a string", CHAT, chat(response_format=SECRET), "invalid_request", "/response_format"),
    ("response_format without a type", CHAT, chat(response_format={}), "invalid_request", "/response_format/type"),
    ("a grammar", CHAT, chat(response_format={"type": "grammar"}), "unsupported_request", "/response_format/type"),
    (
        "json_object with more",
        CHAT,
        chat(response_format={"type": "json_object", "x": 1}),
        "unsupported_request",
        "/response_format/x",
    ),
    (
        "a JSON schema that is missing",
        CHAT,
        chat(response_format={"type": "json_schema"}),
        "invalid_request",
        "/response_format/json_schema",
    ),
    ("a JSON schema that is a string", CHAT, schema(SECRET), "invalid_request", "/response_format/json_schema/schema"),
    (
        "a schema that is nested too deeply",
        CHAT,
        schema(deep(40)),
        "invalid_request",
        "/response_format/json_schema/schema" + "/properties/a" * 24 + "/properties",
    ),
    (
        "a schema with a long pattern",
        CHAT,
        schema({"pattern": "a" * 501}),
        "invalid_request",
        "/response_format/json_schema/schema",
    ),
    (
        "a schema with too many values",
        CHAT,
        schema({"enum": list(range(10_000))}),
        "invalid_request",
        "/response_format/json_schema/schema/enum/1",
    ),
    ("an unknown field", CHAT, chat(guided_regex=SECRET), "unsupported_request", "/guided_regex"),
    ("prompt missing", COMPLETIONS, b"{}", "invalid_request", "/prompt"),
    ("prompt empty", COMPLETIONS, completion(prompt=""), "invalid_request", "/prompt"),
    ("prompt a number", COMPLETIONS, completion(prompt=1), "invalid_request", "/prompt"),
    ("several prompts", COMPLETIONS, completion(prompt=[SECRET, SECRET]), "unsupported_request", "/prompt"),
    ("token ids", COMPLETIONS, completion(prompt=[1, 2]), "unsupported_request", "/prompt"),
    ("tools in a completion", COMPLETIONS, completion(tools=[TOOL]), "invalid_request", "/tools"),
    ("messages in a completion", COMPLETIONS, completion(messages=[USER]), "invalid_request", "/messages"),
    ("logprobs true in a completion", COMPLETIONS, completion(logprobs=True), "invalid_request", "/logprobs"),
    ("top_logprobs in a completion", COMPLETIONS, completion(top_logprobs=3), "invalid_request", "/top_logprobs"),
    ("echo", COMPLETIONS, completion(echo=True), "unsupported_request", "/echo"),
    ("suffix", COMPLETIONS, completion(suffix="x"), "unsupported_request", "/suffix"),
]
