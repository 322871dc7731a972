//! JSON schemas as llama.cpp reads them: an object has no properties beside those that are declared.
//!
//! Source: llama.cpp `common/json-schema.cpp`, `build_object`, and `_visit_all_of` in `common/json-schema-to-grammar.cpp`. In JSON
//! schema itself, and so for the library, `additionalProperties` is true where it is missing; here it becomes false, unless
//! there are no `properties` either. What several parts of a schema declare together is closed as one object.
//! Deviation: `required` is that of JSON schema also within `allOf`, where llama.cpp requires every property.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

type Names = BTreeSet<String>;

/// References that are replaced by what they mean, at most; a schema may refer to itself.
const MAX_INLINED: usize = 500;
/// Keywords whose value is one schema or a list of them.
const PARTS: [&str; 3] = ["items", "prefixItems", "additionalProperties"];
/// Keywords whose value names schemas.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Closes every object of a schema.
pub(super) fn close(schema: &mut Value) {
    let mut closer = Closer { root: schema.clone(), n_inlined: 0, inlining: Vec::new(), refs: Vec::new() };
    closer.visit(schema, &Names::new());
    // Definitions may stand anywhere; a second visit changes nothing.
    let mut seen = Names::new();
    while let Some(place) = closer.refs.pop() {
        if let Some(target) = place.strip_prefix('#').and_then(|p| schema.pointer_mut(p)) {
            if seen.insert(place) {
                closer.visit(target, &Names::new());
            }
        }
    }
}

struct Closer {
    /// The schema as it was.
    root: Value,
    n_inlined: usize,
    /// References that are being replaced.
    inlining: Vec<String>,
    /// References that were left.
    refs: Vec<String>,
}

impl Closer {
    /// Closes a schema, where properties of these other names are allowed as well.
    fn visit(&mut self, schema: &mut Value, others: &Names) {
        let inlined = if others.is_empty() { None } else { self.inlined(schema) };
        if let Some((place, target)) = inlined {
            *schema = target;
            self.inlining.push(place);
            self.visit_fields(schema, others);
            self.inlining.pop();
        } else {
            self.visit_fields(schema, others);
        }
    }

    /// What a reference alone means, and its text.
    fn inlined(&mut self, schema: &Value) -> Option<(String, Value)> {
        let place = reference(schema)?;
        let is_free = self.n_inlined < MAX_INLINED && !self.inlining.iter().any(|p| p == place);
        let target = self.root.pointer(place.strip_prefix('#')?).filter(|_| is_free)?;
        self.n_inlined += 1;
        Some((place.to_owned(), target.clone()))
    }

    fn visit_fields(&mut self, schema: &mut Value, others: &Names) {
        self.refs.extend(schema.get("$ref").and_then(Value::as_str).map(str::to_owned));
        let mut shared = others.clone();
        shared.extend(own_names(schema));
        members(schema, &["allOf"]).for_each(|m| self.names(m, &mut Vec::new(), &mut shared));
        let mut all = shared.clone();
        members(schema, &["anyOf", "oneOf"]).for_each(|m| self.names(m, &mut Vec::new(), &mut all));
        let Value::Object(fields) = schema else { return };
        close_fields(fields, &all);
        for (keyword, value) in fields {
            match (keyword.as_str(), value) {
                ("allOf", Value::Array(list)) => list.iter_mut().for_each(|s| self.visit(s, &all)),
                ("anyOf" | "oneOf", Value::Array(list)) => list.iter_mut().for_each(|s| self.visit(s, &shared)),
                (k, Value::Array(list)) if PARTS.contains(&k) => {
                    list.iter_mut().for_each(|s| self.visit(s, &Names::new()));
                }
                (k, value) if PARTS.contains(&k) => self.visit(value, &Names::new()),
                (k, Value::Object(map)) if NAMED.contains(&k) => {
                    map.values_mut().for_each(|s| self.visit(s, &Names::new()));
                }
                _ => {}
            }
        }
    }

    /// Adds the names that a schema declares for the object that it describes, by references and alternatives as well.
    fn names<'s>(&'s self, schema: &'s Value, followed: &mut Vec<&'s str>, names: &mut Names) {
        names.extend(own_names(schema));
        members(schema, &["allOf", "anyOf", "oneOf"]).for_each(|m| self.names(m, followed, names));
        let target = schema.get("$ref").and_then(Value::as_str).filter(|place| !followed.contains(place));
        if let Some(place) = target {
            followed.push(place);
            if let Some(target) = place.strip_prefix('#').and_then(|p| self.root.pointer(p)) {
                self.names(target, followed, names);
            }
        }
    }
}

/// Lets only properties of these names be where some are declared and nothing is said about others.
fn close_fields(fields: &mut Map<String, Value>, names: &Names) {
    if fields.contains_key("additionalProperties") {
        return;
    }
    let Some(Value::Object(properties)) = fields.get_mut("properties") else { return };
    for name in names {
        properties.entry(name.as_str()).or_insert(Value::Bool(true));
    }
    fields.insert("additionalProperties".into(), Value::Bool(false));
    let has_patterns = fields.contains_key("patternProperties");
    if let Some(Value::Array(required)) = fields.get_mut("required").filter(|_| !has_patterns) {
        required.retain(|name| name.as_str().is_none_or(|name| names.contains(name)));
    }
    if !["type", "const", "enum", "$ref", "allOf", "anyOf", "oneOf"].iter().any(|k| fields.contains_key(*k)) {
        fields.insert("type".into(), "object".into());
    }
}

/// The reference of a schema that is nothing else.
fn reference(schema: &Value) -> Option<&str> {
    let fields = schema.as_object().filter(|fields| fields.len() == 1)?;
    fields.get("$ref").and_then(Value::as_str)
}

fn own_names(schema: &Value) -> impl Iterator<Item = String> + '_ {
    schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|p| p.keys().cloned())
}

fn members<'s>(schema: &'s Value, keywords: &'s [&'s str]) -> impl Iterator<Item = &'s Value> {
    keywords.iter().filter_map(|k| schema.get(*k)).filter_map(Value::as_array).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn closed(mut schema: Value) -> Value {
        close(&mut schema);
        schema
    }

    #[test]
    fn declared_properties_are_all() {
        let open = json!({ "type": "object" });
        assert_eq!(closed(open.clone()), open);
        for own in [json!(true), json!({ "type": "string" })] {
            let schema = json!({ "properties": { "a": {} }, "additionalProperties": own });
            assert_eq!(closed(schema.clone()), schema);
        }
        let schema = json!({ "properties": { "properties": { "enum": [{ "properties": {} }] } }, "required": ["properties", "b"] });
        assert_eq!(
            closed(schema),
            json!({ "type": "object", "properties": { "properties": { "enum": [{ "properties": {} }] } },
                "required": ["properties"], "additionalProperties": false })
        );
    }

    #[test]
    fn parts_of_one_object_are_closed_together() {
        let schema = closed(json!({
            "allOf": [{ "$ref": "#/lib/a" }, { "properties": { "b": {} } }],
            "lib": { "a": { "properties": { "a": {} } } },
        }));
        for part in ["/allOf/0", "/allOf/1"] {
            let part = schema.pointer(part).unwrap();
            assert_eq!(own_names(part).collect::<Names>(), ["a", "b"].map(str::to_owned).into());
            assert_eq!(part["additionalProperties"], false);
        }
    }

    #[test]
    fn a_schema_that_refers_to_itself_comes_to_an_end() {
        let list = vec![json!({ "$ref": "#" }); 9];
        close(&mut json!({ "properties": { "a": { "$ref": "#" } }, "allOf": list.clone(), "anyOf": list }));
    }
}
