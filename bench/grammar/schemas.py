"""What the engines are compared on. Kinds: (kind, name, source)."""
import glob
import importlib.util
import itertools
import json
import os
import pickletools
import sqlite3
import urllib.parse

OBJECT = {"type": "object", "additionalProperties": False}


def made_up_schemas():
    """Kinds of schemas that people write, with some numbers turned so that there are many of them."""
    out = {}
    for n in (1, 3, 8, 20):
        out[f"strings-{n}"] = {**OBJECT, "properties": {f"field_{i}": {"type": "string"} for i in range(n)}, "required": [f"field_{i}" for i in range(0, n, 2)]}
        out[f"mixed-{n}"] = {**OBJECT, "properties": {f"key{i}": {"type": ["integer", "boolean", "null", "number", "string"][i % 5]} for i in range(n)},
                             "required": [f"key{i}" for i in range(n)]}
        out[f"enum-{n}"] = {"enum": [f"value {i * 37}" for i in range(n)]}
        out[f"tuple-{n}"] = {"type": "array", "prefixItems": [{"type": "integer"}] * n, "items": False, "minItems": n}
        out[f"length-{n}"] = {"type": "string", "minLength": n, "maxLength": 4 * n}
        out[f"items-{n}"] = {"type": "array", "items": {"type": "number"}, "minItems": n // 2, "maxItems": n}
        out[f"any-of-{n}"] = {"anyOf": [{**OBJECT, "properties": {"kind": {"const": f"k{i}"}, "v": {"type": "integer"}}, "required": ["kind", "v"]} for i in range(n)]}
        out[f"nested-{n}"] = nest(n)
    for low, high in ((0, 9), (-5, 120), (17, 4096), (-100, -3), (0, 100000)):
        out[f"integer-{low}-{high}"] = {"type": "integer", "minimum": low, "maximum": high}
    for pattern in ("^[a-z]+$", "^[A-Z]{2}[0-9]{4}$", "^\\d{3}-\\d{4}$", "^(foo|bar)-[a-f0-9]{8}$", "^[^@ ]+@[a-z]+\\.com$", "^v\\d+(\\.\\d+){0,2}$"):
        out[f"pattern {pattern}"] = {"type": "string", "pattern": pattern}
    out.update({
        "any": {}, "object": {"type": "object"}, "array": {"type": "array"}, "string": {"type": "string"}, "number": {"type": "number"},
        "integer": {"type": "integer"}, "boolean": {"type": "boolean"}, "null": {"type": "null"}, "types": {"type": ["string", "null", "integer"]},
        "const": {"const": {"a": [1, 2, {"b": None}]}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "open": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
        "list-of-objects": {"type": "array", "items": {**OBJECT, "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id", "name"]}},
        "tree": {"$defs": {"n": {**OBJECT, "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["v", "c"]}}, "$ref": "#/$defs/n"},
        "linked": {"$defs": {"n": {"anyOf": [{"type": "null"}, {**OBJECT, "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}]}}, "$ref": "#/$defs/n"},
        "person": {**OBJECT, "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "address": {**OBJECT, "properties": {
            "street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"]}}, "required": ["name", "age", "address"]},
        "tool-call": {**OBJECT, "properties": {"name": {"enum": ["search", "open", "close"]}, "arguments": {"type": "object"}}, "required": ["name", "arguments"]},
        "union": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]},
        "all-of": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
        "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}, "minItems": 2, "maxItems": 2},
        "unicode": {**OBJECT, "properties": {"größe": {"type": "number"}, "日本": {"type": "string"}}, "required": ["größe"]},
    })
    out.update(written_for_models())
    return [("json_schema", name, json.dumps(schema)) for name, schema in out.items()]


def written_for_models():
    """As the manuals of tool calling and structured output show them, and keywords side by side."""
    text, whole, real = {"type": "string"}, {"type": "integer"}, {"type": "number"}

    def record(**members):
        return {**OBJECT, "properties": members, "required": list(members)}

    step = record(explanation=text, output=text)
    return {
        "math-steps": record(steps={"type": "array", "items": step}, final_answer=text),
        "calendar-event": record(name=text, date={"type": "string", "format": "date"}, participants={"type": "array", "items": text}),
        "interface": {"$ref": "#/$defs/node", "$defs": {"node": record(type={"enum": ["div", "button", "field"]}, label=text, children={"type": "array", "items": {"$ref": "#/$defs/node"}})}},
        "moderation": record(is_violating={"type": "boolean"}, category={"enum": ["violence", "sexual", "self_harm", None]}, explanation={"type": ["string", "null"]}),
        "weather": record(location=text, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": "integer", "minimum": 1, "maximum": 14}),
        "query": record(table={"enum": ["orders", "customers"]}, conditions={"type": "array", "items": record(column=text, operator={"enum": ["=", ">", "<", "<="]}, value={"anyOf": [text, real]})}),
        "invoice": record(id={"type": "string", "pattern": "^INV-[0-9]{6}$"}, total={"type": "number", "minimum": 0}, lines={"type": "array", "minItems": 1, "items": record(item=text, count=whole)}),
        "graph": record(nodes={"type": "array", "items": record(id=whole)}, edges={"type": "array", "items": record(source=whole, target=whole)}),
        "optional-members": {**OBJECT, "properties": {"a": whole, "b": text, "c": {"type": "boolean"}}},
        "optional-behind-required": {**OBJECT, "properties": {"a": whole, "b": text, "c": real}, "required": ["c"]},
        "nullable": record(value={"anyOf": [whole, {"type": "null"}]}),
        "pair": {"type": "array", "prefixItems": [text, whole], "items": False, "minItems": 2},
        "pair-and-more": {"type": "array", "prefixItems": [text, whole], "items": {"type": "boolean"}},
        "map-of-lists": {"type": "object", "additionalProperties": {"type": "array", "items": whole}},
        "map-of-maps": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "null"}}},
        "expression": {"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [real, record(op={"enum": ["+", "*"]}, left={"$ref": "#/$defs/e"}, right={"$ref": "#/$defs/e"})]}}},
        "reals": {"type": "number", "minimum": -1.5, "maximum": 2.25},
        "positive-reals": {"type": "number", "exclusiveMinimum": 0},
        "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}, "minItems": 4, "maxItems": 4},
        "constants": record(version={"const": 2}, mode={"const": "fast"}, on={"const": True}, none={"const": None}),
        "escapes": {"enum": ["line\nbreak", "quote\"", "back\\slash", "tab\t", "\u00e9\u65e5"]},
        "dates": {"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 3},
        "uuid-list": record(ids={"type": "array", "items": {"type": "string", "format": "uuid"}}),
        "addresses": {"type": "array", "items": {"type": "string", "format": "ipv4"}},
        "short-texts": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 2},
        "parts": {"allOf": [{"$ref": "#/$defs/base"}], "type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"],
                  "$defs": {"base": {"type": "object", "properties": {"id": whole}, "required": ["id"]}}},
        "at-least": {"type": "integer", "minimum": 250},
        "at-most": {"type": "integer", "maximum": 99},
        "shares": record(parts={"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "minItems": 1, "maxItems": 5}),
        "numbers-listed": {"enum": [1, 2, 3, 5, 8, 13, 21]},
        "mixed-list": {"type": "array", "items": {"anyOf": [text, whole, {"type": "null"}]}},
        "flags": record(**{f"flag_{i}": {"type": "boolean"} for i in range(12)}),
        "many-optional": {**OBJECT, "properties": {f"o{i}": whole for i in range(12)}},
        "named-and-others": {"type": "object", "properties": {"id": whole}, "required": ["id"], "additionalProperties": {"type": "boolean"}},
        "even-and-odd": {"$ref": "#/$defs/even", "$defs": {"even": record(odd={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/odd"}]}), "odd": record(even={"$ref": "#/$defs/even"})}},
        "bibliography": {"type": "array", "items": record(title=text, authors={"type": "array", "items": text, "minItems": 1}, year={"type": "integer", "minimum": 1450, "maximum": 2100})},
        "table": record(header={"type": "array", "items": text}, rows={"type": "array", "items": {"type": "array", "items": {"anyOf": [text, real, {"type": "null"}]}}}),
        "move": record(piece={"enum": ["K", "Q", "R", "B", "N", "P"]}, square={"type": "string", "pattern": "^[a-h][1-8]$"}),
        "colour": {"type": "string", "pattern": "^#[0-9A-F]{6}$"},
        "version": {"type": "string", "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+$"},
        "identifier": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
        "fixed-length": {"type": "string", "minLength": 7, "maxLength": 7},
        "one-of-kinds": {"oneOf": [record(kind={"const": "circle"}, radius=real), record(kind={"const": "box"}, width=real, height=real)]},
        "steps-of-kinds": {"type": "array", "items": {"anyOf": [record(do={"const": "wait"}, seconds=whole), record(do={"const": "say"}, text=text)]}},
        "deep-list": {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}},
        "empty-object": {**OBJECT, "properties": {}},
        "empty-list": {"type": "array", "maxItems": 0},
        "any-value": record(key=text, value={}),
        "long-names": record(**{"a_rather_long_name_of_a_member_" + c: whole for c in "xyz"}),
        "names-with-marks": record(**{"first name": text, "e-mail": text, "a/b": whole, "c.d": whole}),
    }


def nest(depth):
    schema = {"type": "string"}
    for i in range(depth):
        schema = {**OBJECT, "properties": {f"level{i}": schema}, "required": [f"level{i}"]}
    return schema


def own_schemas():
    """Those that llguidance refuses or that only some engines obey."""
    out = {
        "unique": {"type": "array", "items": {"type": "string", "maxLength": 2}, "uniqueItems": True},
        "unique-enum": {"type": "array", "items": {"enum": ["a", "ab", 1, 12, None]}, "uniqueItems": True, "minItems": 2},
        "contains": {"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}},
        "not": {"type": "string", "not": {"enum": ["a", "b"]}, "maxLength": 2},
        "dependent": {**OBJECT, "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "dependentRequired": {"a": ["b"]}},
        "one-of": {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]},
        "if": {**OBJECT, "properties": {"k": {"enum": ["x", "y"]}, "v": {"type": "integer"}}, "required": ["k", "v"],
               "if": {"properties": {"k": {"const": "x"}}}, "then": {"properties": {"v": {"minimum": 10}}}, "else": {"properties": {"v": {"maximum": -10}}}},
        "pattern-length": {"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 4},
        "multiple": {"type": "integer", "multipleOf": 7, "minimum": -50, "maximum": 50},
        "pattern-properties": {"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"type": "integer", "minimum": 5}}, "additionalProperties": False},
        "names": {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "additionalProperties": {"type": "boolean"}, "maxProperties": 3},
        "min-properties": {**OBJECT, "properties": {c: {"type": "null"} for c in "abcd"}, "minProperties": 2},
    }
    for name in ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"):
        out["format-" + name] = {"type": "string", "format": name}
    return [("json_schema", name, json.dumps(schema)) for name, schema in out.items()]


def schemastore_schemas():
    """(name, schema) of the packages schemastore and check-jsonschema, where installed, with the documents they refer to."""
    found, documents = single_schemas(), meta_schemas()
    for name, schema in found:
        own = schema.get("$id") or schema.get("id") or ""
        documents.update({url.rstrip("#"): schema for url in (own, name) if "://" in url})
    return [(name, with_documents(name, schema, documents)) for name, schema in found]


def single_schemas():
    """Each content once."""
    found, seen = [], set()
    for name, text in itertools.chain(stored_responses(), vendored_files()):
        try:
            schema = json.loads(text)
        except ValueError:
            continue
        content = json.dumps(schema, sort_keys=True)
        if is_schema(schema) and content not in seen:
            seen.add(content)
            found.append((name, schema))
    return found


def meta_schemas():
    """The schemas of schemas, by name, where jsonschema is installed."""
    import jsonschema_specifications
    return {resource.id().rstrip("#"): resource.contents for resource in jsonschema_specifications.REGISTRY.values() if isinstance(resource.contents, dict)}


def with_documents(name, schema, documents):
    """The other documents that a schema refers to, as parts of it (a compound document of draft 2020-12), where known."""
    added = {}
    waiting = [(name, schema)]
    while waiting:
        own, document = waiting.pop()
        for ref in references(document):
            url = urllib.parse.urljoin(document.get("$id") or document.get("id") or own, ref).split("#")[0]
            other = documents.get(url) or documents.get(url + ".json")
            if not ref.startswith("#") and other is not None and other is not schema and url not in added:
                added[url] = other
                waiting.append((url, other))
    if not added:
        return schema
    parts = {f"document {i}": {**document, "$id": url} for i, (url, document) in enumerate(added.items())}
    return {**schema, "$defs": {**schema.get("$defs", {}), **parts}}


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def stays_inside(name, schema):
    """Whether every reference names a part of the schema, or a schema of schemas."""
    own = schema.get("$id") or schema.get("id") or name
    known = {name.rstrip("#"), own.rstrip("#"), *(urllib.parse.urljoin(own, part).rstrip("#") for part in ids(schema)), *meta_schemas()}
    return all(ref.startswith("#") or urllib.parse.urljoin(own, ref).split("#")[0] in known for ref in references(schema))


def ids(node):
    if isinstance(node, dict):
        yield from (node[key] for key in ("$id", "id") if isinstance(node.get(key), str))
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from ids(value)


def is_schema(value):
    return isinstance(value, dict) and not isinstance(value.get("schemas"), list) and any(
        key in value for key in ("$schema", "properties", "type", "$ref", "anyOf", "oneOf", "allOf", "definitions"))


def stored_responses():
    """The package schemastore keeps its schemas as pickled responses; their texts are read without running them."""
    for folder in package_folders("schemastore"):
        for path in glob.glob(os.path.join(folder, "*.sqlite")):
            for key, value in sqlite3.connect(f"file:{path}?mode=ro", uri=True).execute("select key, value from responses order by key"):
                parts = [arg for _, arg, _ in pickletools.genops(value) if isinstance(arg, (bytes, str))]
                urls = [part for part in parts if isinstance(part, str) and part.startswith("http") and "://" in part]
                texts = [part for part in parts if isinstance(part, bytes) and part.lstrip()[:1] == b"{"]
                yield from (((urls or [key])[-1], text) for text in texts[:1])


def vendored_files():
    for folder in package_folders("check_jsonschema"):
        for path in sorted(glob.glob(os.path.join(folder, "**", "*.json"), recursive=True)):
            with open(path, "rb") as file:
                yield os.path.basename(path), file.read()


def package_folders(package):
    spec = importlib.util.find_spec(package)
    return spec.submodule_search_locations if spec else []


REGEXES = ["[a-z]+", "[0-9]{3}-[0-9]{4}", "(yes|no|maybe)( please)?", "[A-Za-z0-9._%+-]+@[a-z]+\\.[a-z]{2,4}", "\\d{4}-\\d{2}-\\d{2}", "(ab|cd)*ef", "[^\\n]{5,20}",
           "#[0-9a-f]{6}", "(\\w+ ){2,4}\\w+\\.", "-?[0-9]+(\\.[0-9]+)?", ".*end", "\"[^\"]*\"", "(a|ab)(c|bcd)(d*)", "[αβγ]+x", "x{3,6}y?", "https?://[a-z./]+",
           "[01]+(\\.[01]+)?", "(Mon|Tue|Wed)day, [0-9]{1,2} (May|June)", "\\$[0-9]{1,3}(,[0-9]{3})*", "[A-Z]{3}-[0-9]{2,}", "(\\([a-z]*\\))+", "[\\x20-\\x7e]{0,40}",
           "<b>[^<]{1,12}</b>", "([a-z]+=[0-9]+;)*", "[+-]?[0-9]{1,3}%", "(GET|POST) /[a-z0-9/]*", "[A-Z][a-z]+ [A-Z][a-z]+", "[0-9]{2}:[0-9]{2}",
           "(a|b|c){2,5}", "0x[0-9a-f]+", "[^aeiou]{3}", "([0-9]{1,3}\\.){3}[0-9]{1,3}", "Q: [^?]+\\?", "(ha)+!?"]
GRAMMARS = ['start: "a" start "b" | "c"', 'start: expr\nexpr: term (("+"|"-") term)*\nterm: /[0-9]+/ | "(" expr ")"',
            'start: item ("," item)*\nitem: /[a-z]+/ "=" /[0-9]+/', 'start: "<" name ">" body "</" name ">"\nname: /[a-z]{1,8}/\nbody: /[^<>]*/',
            'start: line+\nline: /[A-Z][a-z ]*/ ".\\n"', 'start: "SELECT " columns " FROM " /[a-z]+/ (" WHERE " test)?\ncolumns: "*" | /[a-z]+/ (", " /[a-z]+/)*\ntest: /[a-z]+/ " = " /[0-9]+/',
            'start: "[" (start ("," start)*)? "]" | /[0-9]/', 'start: /(yes|no)/ ": " /[^\\n]{1,30}/', 'start: a | b\na: "x" a "x" | "y"\nb: "x" b | "z"',
            'start: "- " /[a-z ]+/ ("\\n- " /[a-z ]+/)*', 'start: pair (";" pair)*\npair: /[a-z]+/ ":" (/[0-9]+/ | "true" | "false")',
            'start: "f(" (argument ("," argument)*)? ")"\nargument: /[a-z]+/ | start', 'start: /[0-9]+/ ("," /[0-9]+/)* "\\n"',
            'start: "if " name " then " name (" else " name)?\nname: /[a-z]{2,6}/']


def languages():
    return [("regex", r, r) for r in REGEXES] + [("ebnf", g[:30], g) for g in GRAMMARS]
