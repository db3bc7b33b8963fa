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
        "a tool's reply",
        CHAT,
        messages(USER, {"role": "tool", "tool_call_id": "1", "content": SECRET}),
        "unsupported_request",
        "/messages/1",
    ),
    (
        "a tool call",
        CHAT,
        messages({"role": "assistant", "content": None, "tool_calls": [{"id": SECRET}]}),
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
    ("n 2", CHAT, chat(n=2), "unsupported_request", "/n"),
    ("n true", CHAT, chat(n=True), "unsupported_request", "/n"),
    ("tools", CHAT, chat(tools=[{"type": "function"}]), "unsupported_request", "/tools"),
    ("tool_choice", CHAT, chat(tool_choice="auto"), "unsupported_request", "/tool_choice"),
    ("a JSON schema", CHAT, chat(response_format={"type": "json_schema"}), "unsupported_request", "/response_format"),
    ("a penalty", CHAT, chat(presence_penalty=0.5), "unsupported_request", "/presence_penalty"),
    ("a logit bias", CHAT, chat(logit_bias={"5": 1}), "unsupported_request", "/logit_bias"),
    ("an unknown field", CHAT, chat(guided_regex=SECRET), "unsupported_request", "/guided_regex"),
    ("prompt missing", COMPLETIONS, b"{}", "invalid_request", "/prompt"),
    ("prompt empty", COMPLETIONS, completion(prompt=""), "invalid_request", "/prompt"),
    ("prompt a number", COMPLETIONS, completion(prompt=1), "invalid_request", "/prompt"),
    ("several prompts", COMPLETIONS, completion(prompt=[SECRET, SECRET]), "unsupported_request", "/prompt"),
    ("token ids", COMPLETIONS, completion(prompt=[1, 2]), "unsupported_request", "/prompt"),
    ("messages in a completion", COMPLETIONS, completion(messages=[USER]), "invalid_request", "/messages"),
    ("echo", COMPLETIONS, completion(echo=True), "unsupported_request", "/echo"),
    ("suffix", COMPLETIONS, completion(suffix="x"), "unsupported_request", "/suffix"),
]
