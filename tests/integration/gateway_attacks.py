# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bodies of the attack suite, for the nginx of this machine and for the gateway of a hardened host alike."""

from __future__ import annotations

# Let through: a body, and what the engine must get of it behind its tenant's salt.
SALTED: list[tuple[bytes, bytes]] = [
    (b"{}", b""),
    (b' \r\n\t{ "a" : 1 } \n', b',"a" : 1 '),
    (b'{"cache_salt":"evil"}', b""),
    (b'{"cache_salt":"evil","a":1}', b',"a":1'),
    (b'{"a":1,"cache_salt":"evil"}', b',"a":1'),
    (b'{"a":1 , "cache_salt" : "evil" , "b":2}', b',"a":1 ,"b":2'),
    (b'{"cache_salt":"x","cache_salt":"y","a":1,"cache_salt":"z"}', b',"a":1'),
    (b'{"cache\\u005fsalt":"evil","a":1}', b',"a":1'),
    (b'{"\\u0063\\u0061\\u0063\\u0068\\u0065\\u005F\\u0073\\u0061\\u006c\\u0074":"evil"}', b""),
    (b'{"cache_salt":null,"a":1}', b',"a":1'),
    (b'{"cache_salt":{"cache_salt":["evil",{"x":"}"}]},"a":1}', b',"a":1'),
    (b'{"cache_salt":["evil","]","}"],"a":1}', b',"a":1'),
    (b'{"cache_salt":-1.5e-3,"a":1}', b',"a":1'),
    (b'{"cache_salt":"\\",\\"a\\":2","a":1}', b',"a":1'),
    # No salt of the request: these stay as they are.
    (b'{"a":{"cache_salt":"inner"}}', b',"a":{"cache_salt":"inner"}'),
    (b'{"a":"\\"cache_salt\\":\\"x\\""}', b',"a":"\\"cache_salt\\":\\"x\\""'),
    (
        b'{"cache_salt ":1,"Cache_salt":2,"cache_salt\\u0000":3}',
        b',"cache_salt ":1,"Cache_salt":2,"cache_salt\\u0000":3',
    ),
    (b'{"cache\\\\u005fsalt":1}', b',"cache\\\\u005fsalt":1'),
    (b'{"\\/cache_salt":1}', b',"\\/cache_salt":1'),
    (b'{"":1,"a":[]}', b',"":1,"a":[]'),
]

# Refused: each of these is read by some parser as an object with a salt in it.
NOT_JSON: list[bytes] = [
    b"\xef\xbb\xbf" + b'{"cache_salt":"evil"}',
    '{"cache_salt":"evil"}'.encode("utf-16"),
    '{"cache_salt":"evil"}'.encode("utf-16-le"),
    '{"cache_salt":"evil"}'.encode("utf-16-be"),
    '{"cache_salt":"evil"}'.encode("utf-32"),
    b'{"cache_salt":"evil"',
    b'{"cache_salt":"evil"}}',
    b'{"a":1}{"cache_salt":"evil"}',
    b'{"a":1}\n{"cache_salt":"evil"}',
    b'{"a":1},',
    b'{"a":1}\x00',
    b'{"a":1}\x00{"cache_salt":"evil"}',
    b'{"a":1}\x0c',
    b'{"a":1,}',
    b'{,"a":1}',
    b'{"a":1 "cache_salt":"evil"}',
    b'{"a"}',
    b'{"a":}',
    b'{"a":1;"cache_salt":"evil"}',
    b"{'cache_salt':'evil'}",
    b"{cache_salt:1}",
    b'{"a":NaN,"cache_salt":"evil"}',
    b'{"a":Infinity}',
    b'{"a":-Infinity}',
    b'{"a":01}',
    b'{"a":1.}',
    b'{"a":.5}',
    b'{"a":+1}',
    b'{"a":0x10}',
    b'{"a":1e}',
    b'{"a":-}',
    b'{"a":True}',
    b'{"a":nul}',
    b'{"a":"\t"}',
    b'{"a":"\n"}',
    b'{"a":"\x00"}',
    b'{"a":"\\x41"}',
    b'{"a":"\\u12"}',
    b'{"a":"\\u12g4"}',
    b'{"a":"\\',
    b'{"a":"\xff"}',
    b'{"a":"\xc0\xaf"}',
    b'{"a":"\xe0\x80\xaf"}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\xf4\x90\x80\x80"}',
    b'{"a":"\xc3"}',
    b'{"\xe9":1}',
    b'{"a":1/*"*/,"cache_salt":"evil"}',
    b'{"a":1}//',
    b"[]",
    b'[{"cache_salt":"evil"}]',
    b'"cache_salt"',
    b"null",
    b"1",
    b"x",
    b" ",
    b'{"a":[1,2}',
    b'{"a":[1,2,]}',
    b'{"a":{"b":1]}',
]

# Fields of a request that reach into other requests or past the gateway.
GUARDED = (
    "background chat_template ec_transfer_params extra_body extra_headers kv_hints kv_transfer_params nvext "
    "previous_response_id priority request_id sampling_params session_id vllm_xargs"
).split()

# A body that names media, and why it is refused; empty if it names none.
MEDIA: list[tuple[str, str]] = [
    (
        '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"},"uuid":"u"}]}]}',
        "media_uuid",
    ),
    ('{"messages":[{"content":[{"type":"text"},{"\\u0075uid":"u"}]}]}', "media_uuid"),
    ('{"messages":[{"c\\u006fntent":[{"uuid":null}]}]}', "media_uuid"),
    ('{"messages":[[{"content":[{"uuid":"u"}]}]]}', "media_uuid"),
    ('{"messages":[{"content":[[{"uuid":"u"}]]}]}', "media_uuid"),
    ('{"documents":{"content":[{"uuid":"u"}]}}', "media_uuid"),
    ('{"input":[{"content":[{"type":"tool_result","content":[{"uuid":"u"}]}]}]}', "media_uuid"),
    ('{"messages":[{"content":[{"type":"tool_use","input":{"uuid":"u"}}]}]}', ""),
    ('{"messages":[{"content":"uuid","uuid":"u"}],"metadata":{"uuid":"u"},"uuid":"u"}', ""),
    ('{"tools":[{"parameters":{"properties":{"uuid":{"type":"string"}}}}]}', ""),
]
