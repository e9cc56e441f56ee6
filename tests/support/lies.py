"""Lies of servers, one by one: what an answer is changed to."""

from __future__ import annotations

from hypothesis import strategies as st

from grpo_ext.vllm.signature import PROOF

Lie = tuple[str, str]  # what is changed, and to what
ARROW = " => "  # between the text that an edit replaces and the new one
FILE = "/etc/hostname"  # to which a redirection leads
FORGED = "\nFORGED\x1b]0;owned\x07\r\x85\u2028\u202e"
STARTS = [
    "HTTP/1.1 204 No", "HTTP/1.1 301 Moved", "HTTP/1.1 307 Moved", "HTTP/1.1 308 \x1b[2J", "HTTP/1.1 401 No",
    "HTTP/1.1 407 No", "HTTP/1.1 429 No", "HTTP/1.1 500 No", "HTTP/1.1 100 Continue", "HTTP/1.1 101 Switch",
    "HTTP/1.1 103 Hints", "HTTP/1.0 200 OK", "HTTP/0.9 200 OK", "HTTP/7.0 200 OK", "HTTP/1.1 -200 OK", "HTTP/1.1 ２００ OK",
    "HTTP/1.1 2000 OK", "HTTP/1.1 200", "", "SSH-2.0", f"HTTP/1.1 500 No{FORGED}", "HTTP/1.1 200 " + "x" * 70000,
]  # fmt: skip
HEADERS = [
    f"Location: file://{FILE}", "Location: http://127.0.0.1:9/v1", "Location: //127.0.0.1:9/", "Location: /elsewhere",
    "WWW-Authenticate: Bearer", "WWW-Authenticate: Basic realm=x", "Proxy-Authenticate: Basic", "Set-Cookie: a=b; Domain=.",
    "Content-Encoding: gzip", "Content-Encoding: br, zstd", "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked", "Content-Length: 5", "Content-Length: -1", "Connection: upgrade", "Upgrade: h2c",
    "Alt-Svc: h3=\":9\"", f"Refresh: 0; url=file://{FILE}", f"{PROOF}: {'0' * 64}", f"{PROOF}: {FORGED}",
    "X-Forwarded-For: 127.0.0.9", f"X: {FORGED}", " folded", ":", "X" * 66000, "\x00: \x00",
    "Content-Type: multipart/mixed; boundary=x", "Content-Type: message/rfc822",
]  # fmt: skip
LENGTHS = [
    "", "0", "1", "-1", "-9", "+9", "1_0", "9999999999999999999999", "0x9", "９", "9, 9", "nan", "\x1b[2J",
]  # fmt: skip
CHUNKS = [
    "", "0", "-1", "-2", "-0", "+1", "1_0", "ffffffffffffffffff", "3e8;" + "x" * 70000, "3e8;\x1b[2J", "x", "0x3e8",
    " 3e8 ",
]  # fmt: skip
BODIES = [
    "", "{}", "[]", "null", "1", "NaN", "-Infinity", "1e999", "9" * 5000, '"' + "x" * 99999 + '"', "[" * 100000,
    '{"a":' * 99999, "<html>", "\ufeff{}", "\udcff", '"\\ud800"', '{"choices": []}', '{"choices": [null]}',
    '{"choices": [{}]}', '{"choices": {"0": 1}}', '{"data": [{"id": "m\\nFORGED\\u001b[2J"}]}',
    '{"version": "1\\u2028FORGED"}', '{"weight_version": "2\\nFORGED"}', '{"server_clock": 9, "server_started": 9}',
    '{"error": "\\nFORGED\\u001b]0;owned\\u0007"}', '{"\\nFORGED\\u001b": 1}',
]  # fmt: skip
MANY = ["[]", "{}", "1", '""', "1.5", '{"a":[]}', "[[[[1]]]]", "null"]
EDITS = [
    '"stop"', '"content"', '"choices"', "[{", "}]", "Score", "7", "0.", "-0.5", "token_id:", "[1, 2]", '"token_ids"',
    '"logprobs"', '"id": "m"', '"version"', '"1"', "100", "101", '"prompt_token_ids"', "0",
]  # fmt: skip
EDITED = [
    "", "NaN", "-Infinity", "1e999", "-1e999", "9" * 5000, "null", "true", "[]", "{}", '"x"', "-1", "1.0", "7.0",
    "[1.0, 2]", "[true, 2]", '"a": 1, "choices"', '"token_ids": [9], "token_ids"',
    '"prompt_token_ids": [9, 9], "prompt_token_ids"', "[[{", '"\\ud800"', "\\ud800", "\\u0000", "\\nFORGED", "\x00",
    "1000000", "99999999999999999999", '"id": "m\\nFORGED"', '"stop\\nFORGED"', "token_id:1_0", "token_id: 7", "token_id:٧",
    "1e-400", "01",
]  # fmt: skip
ENDS = ("close", "reset")  # manners that do not make a client wait
MANNERS = [
    "silent", "unread", "stop 0", "stop 9", "stop 40", "stop 70", "close 0", "close 9", "close 30", "close 60", "reset 0",
    "reset 20", "reset 60", "drip 0", "drip 20", "drip 50", "endless 0", "endless 20", "endless 50", "endless 999",
    "again 25", "again 9999",
]  # fmt: skip


def kinds(**values: list[str]) -> st.SearchStrategy[Lie]:
    return st.one_of(*(st.tuples(st.just(k), st.sampled_from(v)) for k, v in values.items()))


EDIT = st.tuples(
    st.just("edit"),
    st.tuples(st.sampled_from(EDITS), st.sampled_from(EDITED)).map(ARROW.join),
)
LIE = kinds(
    start=STARTS,
    header=HEADERS,
    headers=["50", "101", "9999"],
    length=LENGTHS,
    chunk=CHUNKS,
    body=BODIES,
    many=MANY,
    gzip=["1", "512"],
    manner=MANNERS,
)
ENGINE_LIE = kinds(
    proof=["none", "mac", "guess", "empty", "text"],
    replay=["0", "1", "2", "3", "5", "-1", "-2"],
    relay=["twice", "/update_weights", "/v1/completions", "/health", "/version"],
)
