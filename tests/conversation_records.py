"""Records of chat files: several turns, a system message, reasoning, tools, a turn alone, parts of text."""

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <b>of</b> a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}

RECORDS: dict[str, dict[str, Any]] = {
    "plain": {
        "messages": [
            {"role": "user", "content": "Good day \u00e9 \u4f60"},
            {"role": "assistant", "content": "Good day! How can I help? \n"},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "It is 4."},
        ]
    },
    "system": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Good day"},
            {"role": "assistant", "content": "probe"},
            {"role": "user", "content": "Again?"},
            {"role": "assistant", "content": "other"},
        ]
    },
    "reasoning": {
        "messages": [
            {"role": "user", "content": "Good day"},
            {"role": "assistant", "reasoning_content": "greet", "content": "Hi"},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "reasoning_content": "two and two", "content": "4"},
        ]
    },
    "inline reasoning": {
        "messages": [
            {"role": "user", "content": "Good day"},
            {"role": "assistant", "content": "<think>\ngreet\n</think>\n\nHi"},
            {"role": "user", "content": "2+2?"},
            {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
        ]
    },
    "tools": {
        "tools": [WEATHER],
        "messages": [
            {"role": "user", "content": "Weather in Bonn?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": '{"t": 3}'},
            {"role": "assistant", "content": "3 degrees"},
        ],
    },
    "single": {"messages": [{"role": "user", "content": "Only"}, {"role": "assistant", "content": "One"}]},
    "parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Only"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "One"}]},
        ]
    },
}
