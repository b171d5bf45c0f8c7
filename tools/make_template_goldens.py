#!/usr/bin/env python3
"""Writes tests/golden/chat_template/goldens.json: what Python's jinja2 renders.

    python3 -m venv .venv && .venv/bin/pip install jinja2==3.1.6
    .venv/bin/python tools/make_template_goldens.py

The environment is set up as Hugging Face transformers does for chat templates. The templates beside
the goldens use the constructs of the model families they are named after; the tale-llama template
comes from models/. Snippets pin single constructs. A case that fails stores the reason's kind only:
the wording of errors is ours.
"""
import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden" / "chat_template"
NOW = datetime.datetime(2026, 3, 7, 9, 5, 1)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                    extensions=[Generation, jinja2.ext.loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception
ENV.globals["strftime_now"] = lambda fmt: NOW.strftime(fmt)

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "A town, e.g. \"Łódź\""},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"], "default": "celsius"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "when": {"type": ["string", "null"]},
        "box": {"type": "object", "properties": {"north": {"type": "number", "default": 1.0},
                                                 "tags": {"type": "array", "items": {
                                                     "type": "object", "properties": {
                                                         "k": {"type": "boolean"}}}}}},
        "either": {"oneOf": [{"type": "string", "description": "free text"},
                             {"type": "integer", "default": 3}], "default": "x"}}}}}
NO_ARGS = {"type": "function", "function": {"name": "now", "description": "The time",
                                            "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


USER = {"role": "user", "content": "Hi there"}
SYSTEM = {"role": "system", "content": "  You are terse.\n"}
ASSISTANT = {"role": "assistant", "content": " Hello! \n"}
CONVERSATIONS = {
    "one": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "turns": {"messages": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "And now?"}]},
    "ends_with_assistant": {"messages": [USER, ASSISTANT], "add_generation_prompt": False},
    "unicode": {"messages": [
        {"role": "user", "content": "Grüße, 世界! \U0001f469\u200d\U0001f680 e\u0301 \u00a0\u3000"},
        {"role": "assistant", "content": "\u202eשלום\t\"quoted\" \\ <b>&amp;</b>"},
        {"role": "user", "content": "\u00a0 trimmed? \u2003"}]},
    "empty": {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""},
                           {"role": "assistant", "content": ""}, {"role": "user", "content": " "}]},
    "no_messages": {"messages": []},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": " What is this? "},
                                                        {"type": "image"}]}]},
    "system_parts": {"messages": [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
                                  {"role": "user", "content": [{"type": "text", "text": "Hm"}]}]},
    "wrong_order": {"messages": [ASSISTANT, USER, USER]},
    "odd_role": {"messages": [{"role": "critic", "content": "Boo"}]},
    "no_content": {"messages": [{"role": "user"}]},
    "null_content": {"messages": [{"role": "user", "content": None}]},
    "thinking": {"messages": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
                              {"role": "user", "content": "Sure?"},
                              {"role": "assistant", "content": "Quite.", "reasoning_content": "\nwell\n"}],
                 "add_generation_prompt": False},
    "no_thinking": {"messages": [USER], "enable_thinking": False, "reasoning_effort": "high"},
    "tools": {"messages": [USER], "tools": [WEATHER, NO_ARGS]},
    "tools_system": {"messages": [SYSTEM, USER], "tools": [WEATHER], "tools_in_user_message": False},
    "tool_turn": {"tools": [WEATHER], "messages": [
        {"role": "user", "content": "Weather in Łódź?"},
        {"role": "assistant", "content": None, "tool_calls": [
            call("get_weather", {"place": "Łódź", "days": [1, 2], "x": {"y": None, "z": 1e-7}},
                 id="abcdef123")]},
        {"role": "tool", "tool_call_id": "abcdef123", "content": "{\"temp\": 21.5}"},
        {"role": "assistant", "content": "It is 21.5 °C."},
        {"role": "user", "content": "Thanks"}]},
    "tool_turn_text": {"messages": [
        USER,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            call("get_weather", {"place": "X"}, id="abcdef123"), call("now", {}, id="abcdef124")]},
        {"role": "tool", "tool_call_id": "abcdef123", "content": "cold"},
        {"role": "tool", "tool_call_id": "abcdef124", "content": "late"}]},
    "builtin": {"builtin_tools": ["search", "code"], "messages": [
        USER, {"role": "assistant", "tool_calls": [call("search", {"query": "a", "n": "2"})]}]},
}
DEFAULTS = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}

MIX = {"xs": [3, 1, 2], "names": ["b", "A", "c", "a"], "s": "Hello, wörld", "n": None, "t": True,
       "f": 2.5, "d": {"b": 2, "a": 1, "items": 7, "C": 0}, "empty": [], "big": 10**15,
       "rows": [{"k": "x", "v": 1, "in": {"z": 5}}, {"k": "y", "v": 2, "in": {"z": 3}},
                {"k": "x", "v": 3, "in": {"z": 4}}],
       "lines": "one\n\n  two\r\nthree\u2028four\n", "sp": "  \t a  b \n c ", "html": "<a href='x'>\"&"}
SNIPPETS = """
{{ xs }} {{ d }} {{ n }} {{ t }} {{ f }} {{ s }} {{ 'a\\'b' }} {{ ['a\\'b', "c\\"d", 'e\\n\\té\\x00'] }}
{{ (1,) }} {{ (1, 2) }} {{ () }} {{ [] }} {{ {} }} {{ {'a': [1, {'b': none}]} }}
{{ 1 + 2 * 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }}
{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 0.1 + 0.2 }} {{ 1e-5 }} {{ 0.0001 }} {{ 123456789.123 }} {{ 1e22 }} {{ 2 ** -1 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 0.5 }} {{ true + 1 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}
{{ 'a' ~ 1 ~ none ~ [1] ~ true }} {{ 'a' + 'b' * 3 }} {{ [1] + [2] }} {{ [0] * 3 }} {{ 2 * 'xy' }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }}
{{ 1 in xs }} {{ 9 not in xs }} {{ 'ell' in s }} {{ 'a' in d }} {{ 'zz' in d }} {{ not 1 in xs }}
{{ 1 and 0 }} {{ 0 or 'x' }} {{ not '' }} {{ none or false }} {{ 'a' if false }}|{{ 'a' if 0 else 'b' }} {{ 1 if t else 2 if t else 3 }}
{{ xs[0] }} {{ xs[-1] }} {{ xs[9] }}| {{ xs[1:] }} {{ xs[:-1] }} {{ xs[::-1] }} {{ xs[::2] }} {{ xs[5:1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[8] }}
{{ d.a }} {{ d['b'] }} {{ d.zz }}| {{ d['items'] }} {{ d.items() | list }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.get('q', 5) }} {{ d.get('q') }}
{{ d.items is defined }} {{ rows[0].items is defined }} {{ d.update is defined }} {{ xs.append is defined }} {{ n.x is defined }} {{ rows.0.k }}
{{ undefined_thing }}| {{ undefined_thing is defined }} {{ undefined_thing | default('dflt') }} {{ '' | default('e', true) }} {{ n | default('x') }} {{ undefined_thing | length }} {{ undefined_thing == undefined_other }}
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ 'ßtraße ǆ'.capitalize() }} {{ 'ß'.upper() }} {{ 'ΑΣ'.lower() }} {{ s.swapcase() }}
{{ sp.strip() }}|{{ sp.lstrip() }}|{{ sp.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcab'.strip('ab') }}|{{ 'éaé'.strip('é') }}
{{ sp.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ ' a b  c '.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('x') }}
{{ s.startswith('Hell') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith('ello', 1) }} {{ 'xab'.removeprefix('x') }} {{ 'abx'.removesuffix('x') }}
{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'ab'.replace('', '-') }} {{ 'aaa'.replace('aa', 'b') }} {{ s.find('ö') }} {{ s.find('q') }} {{ s.rfind('l') }} {{ s.index('w') }} {{ s.count('l') }} {{ 'aaaa'.count('aa') }}
{{ '-'.join(['a', 'b']) }} {{ 'x'.center(5) }}|{{ 'x'.ljust(3, '.') }}|{{ 'x'.rjust(3) }}|{{ '-5'.zfill(4) }} {{ 'ab'.center(5, '*') }} {{ 'ab1'.isalnum() }} {{ '12'.isdigit() }} {{ 'a'.isalpha() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'aB'.islower() }}
{{ '%s is %d and %.2f' % ('a', 3, 2.5) }} {{ '%5s|%-5s|%05d|%x|%+d' % ('a', 'b', 42, 255, 7) }} {{ '%(a)s' % {'a': 1} }} {{ '%r %%' % 'x' }} {{ '%s' % 5 }} {{ '%e %g' % (12345.678, 0.0001) }}
{{ '{} {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=5) }} {{ '{:.3f}|{:>5}|{:<5}|{:^5}|{:05d}|{:,}'.format(1.5, 'a', 'b', 'c', 42, 1234567) }} {{ '{{}}'.format() }} {{ '{:x} {:#x} {:b} {:e} {:%}'.format(255, 255, 5, 1234.5, 0.25) }} {{ '{0[k]} {0.v}'.format(rows[0]) }}
{{ xs | sort }} {{ xs | sort(reverse=true) }} {{ names | sort }} {{ names | sort(case_sensitive=true) }} {{ rows | sort(attribute='v', reverse=true) | map(attribute='v') | list }} {{ rows | sort(attribute='k,in.z') | map(attribute='v') | list }}
{{ xs | first }} {{ xs | last }} {{ empty | first }}| {{ xs | length }} {{ s | length }} {{ d | count }} {{ s | first }} {{ d | first }} {{ d | last }}
{{ xs | join(', ') }} {{ xs | join }} {{ rows | join('+', attribute='k') }} {{ s | join('.') }} {{ [none, true, 1.5] | join('|') }}
{{ names | map('upper') | list }} {{ rows | map(attribute='k') | join }} {{ rows | map(attribute='q', default='-') | join }} {{ rows | map(attribute='in.z') | list }} {{ [' a '] | map('trim') | list }} {{ names | map('replace', 'a', 'z') | list }}
{{ n | selectattr('type', 'equalto', 'x') | list | length }}{{ n | map('upper') | list }}{{ 0 | reject('odd') | list }}{{ false | rejectattr('k') | list }}{{ n | select | list }}{{ undefined_thing | map(attribute='k') | list }}
{{ 5 | map('upper') | list }}
{{ true | select | list }}
{{ [[[1, 2], [3, 4]]].0.1.0 }} {{ rows.0.k }} {{ {'a': ['x', {'b': 7}]}.a.1.b }} {{ 1.5 }} {{ 10.25e2 }} {{ [[1, [2]]].0.1[0] }}
{{ rows | selectattr('k', 'equalto', 'x') | map(attribute='v') | list }} {{ rows | rejectattr('k', '==', 'x') | list }} {{ xs | select('odd') | list }} {{ xs | reject('odd') | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ rows | selectattr('q', 'defined') | list }} {{ rows | selectattr('q', 'undefined') | list | length }} {{ xs | select('gt', 1) | list }} {{ xs | select('in', [1, 2]) | list }}
{{ d | items | list }} {{ undefined_thing | items | list }} {{ d | dictsort }} {{ d | dictsort(by='value', reverse=true) }} {{ d | dictsort(case_sensitive=true) }} {{ d | list }}
{{ names | unique | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ xs | min }} {{ xs | max }} {{ names | min }} {{ rows | max(attribute='v') }} {{ xs | sum }} {{ rows | sum(attribute='v', start=10) }} {{ empty | max }}|
{{ range(5) | batch(2) | list }} {{ range(5) | batch(2, 'x') | list }} {{ range(5) | slice(2) | list }} {{ range(5) | slice(3, 'x') | list }}
{% for k, g in rows | groupby('k') %}{{ k }}={{ g | map(attribute='v') | list }};{% endfor %}
{{ xs | reverse | list }} {{ s | reverse }} {{ s | list }} {{ 'abc' | batch(2) | list }} {{ s | upper | lower | title | capitalize }} {{ 'a-b (c) it\\'s' | title }}
{{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 5 | string | length }} {{ n | string }} {{ 'a b' | wordcount }} {{ 'x' | center(7) }}| {{ s | replace('l', 'L', 2) }} {{ 15 | replace(5, 6) }} {{ html | e }} {{ html | safe }}
{{ '3' | int + 1 }} {{ '3.7' | int }} {{ 'x' | int }} {{ 'x' | int(-1) }} {{ '0x1A' | int(0, 16) }} {{ 3.99 | int }} {{ '3.5' | float }} {{ 'x' | float(1.5) }} {{ none | int }} {{ true | int }} {{ -5 | abs }} {{ ' 42 ' | int }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.567 | round(2) }} {{ 2.561 | round(2, 'ceil') }} {{ 2.569 | round(2, 'floor') }} {{ 5 | round }} {{ 42.55 | round | int }} {{ 1234 | round(-2) }}
{{ 'a\\nb\\n\\nc' | indent }}| {{ 'a\\nb' | indent(2, true) }}| {{ 'a\\n\\nb' | indent(2, blank=true) }}| {{ 'a\\nb' | indent('> ') }}| {{ lines | indent(1) }}
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '..', 0) }} {{ '%s-%s' | format('a', 'b') }} {{ '%(x)s' | format(x=1) }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [1, [2, {'a': []}]] | tojson(indent=1) }} {{ xs | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true) }}
{{ html | tojson }} {{ 'é\\u2028\\x7f\\x01\\n\\t\\r\\x08\\x0c/' | tojson }} {{ 'é\U0001f600' | tojson(ensure_ascii=true) }} {{ [1.0, 1e20, 1e-7, true, none, 12345678901234567] | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 2) | tojson }} {{ 'x' | tojson(indent=4) }}
{% set x = 1 %}{% for i in xs %}{{ x }}{% set x = i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(a=1, b=[]) %}{% for i in xs %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }} {{ ns.b }} {{ ns.zz is defined }} {{ ns['a'] }}
{% for i in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}
{% for i in xs if i > 1 %}{{ loop.index }}/{{ loop.length }}={{ i }}{{ ',' if not loop.last }}{% else %}none{% endfor %} {% for i in empty %}x{% else %}empty{% endfor %} {% for i in xs if i > 5 %}{{ i }}{% else %}none{% endfor %}
{% set ns = namespace(stop=false) %}{% for i in xs if not ns.stop %}{{ i }}{% if i == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %} {% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% set a, b = 1, 2 %}{{ b }}{{ a }}
{% for i in [1, 2] %}{% for j in [1, 2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %} {% for c in 'añb' %}{{ c }}.{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {{ range(3) | list }}
{% macro m(a, b=2, *args) %}{% endmacro %}
{% macro m(a, b=2) %}[{{ a }} {{ b }} {{ varargs }} {{ kwargs }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m(1, 2, 3, x=4) }}{{ m() }}
{% macro fact(n) %}{{ n if n < 2 else n * (fact(n - 1) | int) }}{% endmacro %}{{ fact(5) }}
{% set outer = 'o' %}{% macro m() %}{{ outer }}{% set outer = 'i' %}{{ outer }}{% endmacro %}{{ m() }}{{ outer }}{% set outer = 'p' %}{{ m() }}
{% macro wrap(x) %}<{{ caller(x) }}>{% endmacro %}{% call(v) wrap('in') %}{{ v }}{{ s }}{% endcall %}
{% macro late() %}{{ defined_later }}{% endmacro %}{% set defined_later = 'yes' %}{{ late() }}
{% set b %}x{{ 1 }}y{% endset %}{{ b }} {% set b | upper | trim %} x{{ 'a' }} {% endset %}{{ b }} {% filter upper %}a{{ s }}{% endfilter %} {% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% if xs %}a{% elif t %}b{% else %}c{% endif %}{% if not xs %}a{% elif f > 2 %}b{% else %}c{% endif %}{% if n %}{% else %}c{% endif %}{% if t %}{% set q = 5 %}{% endif %}{{ q }}
{{ n is none }} {{ t is boolean }} {{ 1 is boolean }} {{ 1 is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ t is integer }} {{ s is string }} {{ d is mapping }} {{ xs is iterable }} {{ s is iterable }} {{ n is iterable }} {{ xs is sequence }} {{ d is sequence }} {{ 1 is sequence }} {{ t is true }} {{ 1 is true }} {{ false is false }} {{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }}
{{ s is not none }} {{ xs is not defined }} {{ 1 is eq 1 }} {{ 1 is in [1, 2] }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is sameas true }} {{ range is callable }} {{ 3 is gt 2 and 2 is lt 3 }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 1 is ne 2 }}
{{ xs | length > 2 and 'y' or 'n' }} {{ xs|length - 1 }} {{ -xs[0] }} {{ -f|round }} {{ 'a' 'b' }} {{ ('a' ~ 'b') | upper }} {{ 'a' ~ 'b' | upper }} {{ not xs is none }} {{ 2 * 3 ~ 4 }} {{ 1 ~ 2 + 3 | int if false else 'z' }}
{{ dict(a=1, b=[2]) }} {{ dict([('k', 1)]) }} {{ dict({'a': 1}, b=2) }} {% set j = joiner('; ') %}{% for i in xs %}{{ j() }}{{ i }}{% endfor %} {% set c = cycler('o', 'e') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }} {{ strftime_now('%Y-%m-%d %H:%M, %d %b, %A, %j') }}
a {%- if t %} b {%- endif %} c {{- 1 -}} d {%+ if t %} e {%+ endif +%} f {# note #} g {#- note -#} h
{% raw %}{{ not }} {% this %}{% endraw %}|{%- raw -%}  x  {%- endraw -%}  |  {% raw %} y {% endraw %} |
{{ {'a': {'b': '}}'}}['a']['b'] }} {{ '%}' }} {{ "{{" }} {{ '\\u00e9\\x41\\101\\q\\\\' }} {{ {'k': 1,}.k }} {{ [1, 2,] }} { {% if t %}{%endif%} {{{'a':1}['a']}}
{% set x = (1, 2, 3) %}{{ x[1:] }} {{ (1, 2) + (3,) }} {{ 'a' in ('a', 'b') }} {{ x | list }} {{ x == (1, 2, 3) }} {{ x == [1, 2, 3] }} {{ [[1, 2], [3]] | map('sum') | list }} {{ 'abc'[1:][0] }} {{ xs[1:][0] }}
{{ s | attr('upper') is defined }} {{ d | attr('a') is defined }} {{ loop is defined }} {{ (d.a or 5) + 1 }} {{ d['missing'] is defined }} {{ d.missing.x if d.missing else 'guarded' }} {{ big }} {{ 10 ** 18 }} {{ f * 2 }} {{ 3 | float }} {{ 1 - 0.9 }}
{{ raise_exception('stop: ' ~ s) }}
{{ undefined_thing.x }}
{{ undefined_thing + 'x' }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 1 / 0 }}
{{ none | length }}
{{ undefined_function() }}
{{ 'x'() }}
{{ n.x.y }}
{{ xs | join(5 }}
{{ xs | no_such_filter }}
{{ xs is no_such_test }}
{% if n %}{{ xs | no_such_filter }}{% elif xs is no_such_test %}{% endif %}
{% if n %}{{ xs | no_such_filter }}{{ xs is no_such_test }}{% else %}fine{% endif %}
{% if x %}
{% endfor %}
{% for x in xs %}{% else %}
{{ 'abc }}
{{ [1, 2 }}
{% frobnicate %}
{# open
{{ undefined_thing | tojson }}
{% set xs.y = 1 %}
{{ xs.append(1) }}
{{ range(1000000) | list }}
{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}
{{ none + 1 }}
{{ s.nope() }}
{{ 'a' if s is defined if t else 'b' }}
{% for x in 5 %}{% endfor %}
{% set a, b = [1, 2, 3] %}
{{ [3, 'a'] | sort }}
{{ {[1]: 2} }}
{{ 5 is in 5 }}
{{ s.split('') }}
{{ '%d' % 'x' }}
{{ '{}'.format() }}
""".strip("\n").split("\n")
# Blocks on lines of their own, with and without the line's blanks.
LAYOUTS = [
    "a\n  {% if t %}\n    b\n  {% endif %}\nc\n",
    "a\n  {%- if t %}\n    b\n  {%- endif %}\nc\n\n",
    "a\n  {% if t -%}\n    b\n  {% endif -%}\n\n c",
    "{% for i in xs %}\n  {{ i }}\n{% endfor %}\n",
    "{% for i in xs -%}\n  {{ i }}\n{%- endfor %}\n",
    "  {# note #}\n x {# y #} \n\t{# z #}\nend",
    "x  {% set y = 1 %}\n  {{ y }}  \n  {%+ set y = 2 %}\n{{ y }}{% if t +%}\nq{% endif %}",
    "line\r\n  {% if t %}\r\nwin\r{% endif %}\r\n",
    "{%- set a = 1 -%}\n\n\n{{- a -}}\n\n\n{%- if a %}\n\nz{% endif %}\n\n",
    "  {{ 1 }}\n  {{- 2 }}\n  {{ 3 -}}\n  4\n",
    "{% raw %}\n  {{ x }}\n{% endraw %}\nend\n",
    "   {% raw -%}  keep {% if %}  {%- endraw %}   \nz",
    "{{ a\n  if a is defined\n  else 'multi\nline' }}{% set\n  q = [1,\n 2] %}{{ q }}",
    "\u00a0{% if t %}\u2003\n x{% endif %}",
]


def render(source, variables):
    try:
        return {"text": ENV.from_string(source).render(**variables)}
    except Raised as e:
        return {"raised": str(e)}
    except jinja2.TemplateSyntaxError:
        return {"error": "syntax"}
    except Exception:  # whatever Python raises inside a template
        return {"error": "render"}


def main():
    tale = json.loads((ROOT / "models/tale-llama/tokenizer_config.json").read_text())
    templates = {p.stem: p.read_text() for p in sorted(FOLDER.glob("*.jinja"))}
    templates["tale_llama"] = tale["chat_template"]
    cases = []
    for template, source in templates.items():
        for name, conversation in CONVERSATIONS.items():
            variables = {**DEFAULTS, **conversation}
            cases.append({"template": template, "conversation": name, **render(source, variables)})
    goldens = {
        "now": "2026-03-07 09:05:01",
        "conversations": {k: {**DEFAULTS, **v} for k, v in CONVERSATIONS.items()},
        "cases": cases,
        "variables": MIX,
        "snippets": [{"source": s, **render(s, MIX)} for s in SNIPPETS + LAYOUTS],
    }
    out = FOLDER / "goldens.json"
    out.write_text(json.dumps(goldens, ensure_ascii=False, indent=1) + "\n")
    failed = [c for c in cases + goldens["snippets"] if "error" in c]
    print(f"{len(cases)} conversations, {len(goldens['snippets'])} snippets, "
          f"{len(failed)} of them failing on purpose: {out}")
    for f in failed:
        print("  ", f.get("source", (f.get("template"), f.get("conversation"))), f["error"])


if __name__ == "__main__":
    main()
