#!/usr/bin/env python3
"""Writes templates.json: test templates and what Jinja2 makes of them, in the environment of Hugging Face transformers.

    python3 tests/golden/chat/make.py > tests/golden/chat/templates.json      (jinja2 3.1.6)

The templates are written for this test; they use what the templates of the named families use.
"""
import json

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a small assistant.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if not ns.found and message.role == 'user' %}
        {%- set ns.found = true %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}
    {{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}
    {{- ' ' + message['content'] + eos_token }}
{%- else %}
    {{- raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

PHI3 = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{ '<|system|>
' + message['content'] + '<|end|>
' }}{% elif message['role'] == 'user' %}{{ '<|user|>
' + message['content'] + '<|end|>
' }}{% elif message['role'] == 'assistant' %}{{ '<|assistant|>
' + message['content'] + '<|end|>
' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

CONTROL = """{% macro turn(role, text) -%}
<{{ role | upper }}>{{ text | replace('"', "'") }}</{{ role }}>
{%- endmacro %}
{# nothing #}
{% for m in messages if m.role != 'system' %}
  {% if loop.index > 3 %}{% break %}{% endif %}
  {{- turn(m.role, m.content) ~ loop.index }}
{% else %}
none
{% endfor %}
{{ messages | map(attribute='role') | join(',') }}|{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ {'role': 'x', 'list': [1, 2.5, 'é<&']} | tojson }}{{ tools is none }}{{ nothing is defined }}
"""

FAMILIES = {
    "chatml": (CHATML, "<|im_end|>"),
    "qwen": (QWEN, "<|im_end|>"),
    "llama3": (LLAMA3, "<|eot_id|>"),
    "mistral": (MISTRAL, "</s>"),
    "gemma": (GEMMA, "<end_of_turn>"),
    "phi3": (PHI3, "<|end|>"),
    "control": (CONTROL, ""),
}

SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [
    {"role": "user", "content": " What is 1 + 1?\n"},
    {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\nTwo."},
    {"role": "user", "content": 'And "2" + <é>?'},
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.globals["raise_exception"] = raise_exception
    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    return env


def hears_system(source):
    """Whether what the system message says is in the text."""
    text = render_as_is(source, [{"role": "system", "content": "4e1b7c92"}, {"role": "user", "content": "test"}], True)
    return text is not None and "4e1b7c92" in text


def render(source, messages, add_generation_prompt):
    """As llama.cpp: a template without system messages gets them in front of the next turn."""
    if messages[0]["role"] == "system" and not hears_system(source):
        merged = {"role": messages[1]["role"], "content": messages[0]["content"] + "\n" + messages[1]["content"]}
        messages = [merged] + messages[2:]
    return render_as_is(source, messages, add_generation_prompt)


def render_as_is(source, messages, add_generation_prompt):
    try:
        return environment().from_string(source).render(
            messages=messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=add_generation_prompt,
            enable_thinking=True, tools=None, documents=None)
    except jinja2.exceptions.TemplateError:
        return None


def main():
    out = []
    for name, (source, answer_end) in FAMILIES.items():
        cases = []
        for messages in (TALK[:1], TALK[:2], TALK, [SYSTEM] + TALK[:1], [SYSTEM] + TALK, TALK[1:]):
            for add in (True, False):
                cases.append({"messages": messages, "add_generation_prompt": add, "text": render(source, messages, add)})
        out.append({"name": name, "source": source, "answer_end": answer_end, "cases": cases})
    print(json.dumps(out, ensure_ascii=False, indent=1))


main()
