//! What a schema may look like before a validator gets to see it: references stay inside it, and do not multiply the
//! work of whoever follows them.
//!
//! Nothing here decides whether a schema is a valid one: the validator does.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// How many parts a schema may have once every reference in it is followed. A schema written by hand has some dozens.
const PARTS_MAX: u64 = 20_000;
/// How many levels and references may follow each other on the way down.
const CHAIN_MAX: usize = 200;

/// Refuse, before it is compiled, a schema that would take a validator beyond all bounds: references that point
/// outside, and references that multiply (twenty definitions that each name the next one twice are a million).
pub(super) fn check_shape(schema: &Value) -> Result<(), String> {
    let mut anchors = HashMap::new();
    find_anchors(schema, true, &mut anchors)?;
    let mut counted = HashMap::new();
    match count_parts(schema, schema, &anchors, &mut counted, 0)? {
        parts if parts > PARTS_MAX => Err(format!(
            "with every reference followed it has more than {PARTS_MAX} parts: let fewer definitions refer to each other"
        )),
        _ => Recursion { schema, anchors: &anchors, seen: HashMap::new() }.check(),
    }
}

/// The places that a reference of the form `#name` can mean. A second `$id` would give references another base.
fn find_anchors<'s>(part: &'s Value, root: bool, anchors: &mut HashMap<&'s str, &'s Value>) -> Result<(), String> {
    match part {
        Value::Object(map) => {
            if !root && map.get("$id").is_some_and(Value::is_string) {
                return Err("a `$id` below the root is not supported: refer to parts as `#/$defs/name`".to_owned());
            }
            for keyword in ["$anchor", "$dynamicAnchor"] {
                if let Some(name) = map.get(keyword).and_then(Value::as_str)
                    && anchors.insert(name, part).is_some_and(|other| !std::ptr::eq(other, part))
                {
                    return Err(format!("the anchor `{name}` is set twice"));
                }
            }
            map.values().try_for_each(|item| find_anchors(item, false, anchors))
        }
        Value::Array(items) => items.iter().try_for_each(|item| find_anchors(item, false, anchors)),
        _ => Ok(()),
    }
}

/// How many parts `part` has with every reference followed; a reference back to something being counted counts as one.
fn count_parts<'s>(
    part: &'s Value,
    schema: &'s Value,
    anchors: &HashMap<&'s str, &'s Value>,
    counted: &mut HashMap<*const Value, Option<u64>>,
    depth: usize,
) -> Result<u64, String> {
    if depth > CHAIN_MAX {
        return Err(format!("references and levels follow each other more than {CHAIN_MAX} deep: make it flatter"));
    }
    let count_all = |items: &mut dyn Iterator<Item = &'s Value>, counted: &mut HashMap<*const Value, Option<u64>>| {
        let mut sum = 1u64;
        for item in items {
            sum = sum.saturating_add(count_parts(item, schema, anchors, counted, depth + 1)?);
        }
        Ok::<u64, String>(sum)
    };
    let map = match part {
        Value::Object(map) => map,
        Value::Array(items) => return count_all(&mut items.iter(), counted),
        _ => return Ok(1),
    };
    let address: *const Value = part;
    match counted.get(&address) {
        // A cycle: the validator follows it only as far as the value goes.
        Some(None) => return Ok(1),
        Some(Some(parts)) => return Ok(*parts),
        None => counted.insert(address, None),
    };
    let mut sum = 1u64;
    for (keyword, value) in map {
        let parts = match (keyword.as_str(), value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                match resolve(reference, schema, anchors)? {
                    Some(target) => count_parts(target, schema, anchors, counted, depth + 1)?,
                    None => 1,
                }
            }
            // Definitions count where they are referred to; data is no schema.
            ("$defs" | "definitions" | "const" | "enum" | "default" | "examples", _) => 1,
            ("properties" | "patternProperties" | "dependentSchemas" | "dependencies", Value::Object(named)) => {
                count_all(&mut named.values(), counted)?
            }
            (_, value) => count_parts(value, schema, anchors, counted, depth + 1)?,
        };
        sum = sum.saturating_add(parts);
    }
    counted.insert(address, Some(sum));
    Ok(sum)
}

/// Finds a schema that comes back to itself twice for the same place of a value: each level of the value then doubles
/// the work, and 40 levels are beyond every clock. Coming back by different properties, as a tree does, is linear and
/// fine.
///
/// Runs after [`count_parts`], which bounds how deep it recurses.
struct Recursion<'s, 'a> {
    schema: &'s Value,
    anchors: &'a HashMap<&'s str, &'s Value>,
    /// How often each part comes back; `None` while it is being looked at.
    seen: HashMap<*const Value, Option<Returns<'s>>>,
}

/// How often a part leads back to something that contains it.
#[derive(Debug, Clone, Default)]
struct Returns<'s> {
    /// For the very place that the part applies to; of these, what goes on to members and to items from there.
    here: i64,
    here_to_members: i64,
    here_to_items: i64,
    /// For any member of an object there, and what a named member differs from that.
    members: i64,
    named: HashMap<&'s str, i64>,
    /// For any item of a list there, and what an item at a position differs from that.
    items: i64,
    positions: HashMap<usize, i64>,
}

impl<'s> Returns<'s> {
    /// Both apply to the same place.
    fn add(&mut self, other: &Returns<'s>) {
        self.here += other.here;
        self.here_to_members += other.here_to_members;
        self.here_to_items += other.here_to_items;
        self.members += other.members;
        self.items += other.items;
        for (name, count) in &other.named {
            *self.named.entry(name).or_default() += count;
        }
        for (position, count) in &other.positions {
            *self.positions.entry(*position).or_default() += count;
        }
    }

    /// At the place for which it is the most.
    fn most(&self) -> i64 {
        let named = self.named.values().max().copied().unwrap_or_default().max(0);
        let placed = self.positions.values().max().copied().unwrap_or_default().max(0);
        let members = self.here_to_members + self.members + named;
        let items = self.here_to_items + self.items + placed;
        self.here.max(members).max(items)
    }
}

impl<'s> Recursion<'s, '_> {
    fn check(mut self) -> Result<(), String> {
        let root = self.schema;
        self.returns(root).map(drop)
    }

    fn returns(&mut self, part: &'s Value) -> Result<Returns<'s>, String> {
        let Value::Object(map) = part else { return Ok(Returns::default()) };
        match self.seen.get(&std::ptr::from_ref(part)) {
            Some(None) => {
                let (to_members, to_items) = self.goes_on(part, &mut HashSet::new())?;
                return Ok(Returns {
                    here: 1,
                    here_to_members: i64::from(to_members),
                    here_to_items: i64::from(to_items),
                    ..Returns::default()
                });
            }
            Some(Some(known)) => return Ok(known.clone()),
            None => self.seen.insert(part, None),
        };
        let mut found = Returns::default();
        for item in self.same_place(map)? {
            found.add(&self.returns(item)?);
        }
        self.add_members(map, &mut found)?;
        self.add_items(map, &mut found)?;
        if found.most() > 1 {
            return Err("it comes back to itself more than once for the same place of a value, \
                        so that each level of a value would double the work: refer back once"
                .to_owned());
        }
        self.seen.insert(part, Some(found.clone()));
        Ok(found)
    }

    /// The parts that apply to the same place as the one they stand in.
    fn same_place(&self, map: &'s Map<String, Value>) -> Result<Vec<&'s Value>, String> {
        let mut parts = Vec::new();
        for (keyword, value) in map {
            match (keyword.as_str(), value) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                    parts.extend(resolve(reference, self.schema, self.anchors)?);
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(items)) => parts.extend(items),
                ("not" | "if" | "then" | "else", item) => parts.push(item),
                ("dependentSchemas" | "dependencies", Value::Object(named)) => parts.extend(named.values()),
                _ => {}
            }
        }
        Ok(parts)
    }

    /// Whether `part` says anything of the members of an object, and of the items of a list.
    fn goes_on(&self, part: &'s Value, seen: &mut HashSet<*const Value>) -> Result<(bool, bool), String> {
        let Value::Object(map) = part else { return Ok((false, false)) };
        if !seen.insert(part) {
            return Ok((false, false));
        }
        let has = |keywords: &[&str]| keywords.iter().any(|keyword| map.contains_key(*keyword));
        let mut members = has(&["properties", "patternProperties", "additionalProperties", "unevaluatedProperties"]);
        let mut items = has(&["items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"]);
        for item in self.same_place(map)? {
            let (more_members, more_items) = self.goes_on(item, seen)?;
            members |= more_members;
            items |= more_items;
        }
        Ok((members, items))
    }

    fn add_members(&mut self, map: &'s Map<String, Value>, found: &mut Returns<'s>) -> Result<(), String> {
        // Applies to the members that `properties` does not name.
        let others = self.most_of(map.get("additionalProperties"))?;
        found.members += others + self.most_of(map.get("unevaluatedProperties"))?;
        for (name, item) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            *found.named.entry(name).or_default() += self.most_of(Some(item))? - others;
        }
        for item in map.get("patternProperties").and_then(Value::as_object).into_iter().flat_map(|named| named.values())
        {
            found.members += self.most_of(Some(item))?;
        }
        Ok(())
    }

    fn add_items(&mut self, map: &'s Map<String, Value>, found: &mut Returns<'s>) -> Result<(), String> {
        // Older drafts write a list where newer ones write `prefixItems`.
        let (first, rest) = match (map.get("prefixItems"), map.get("items")) {
            (None, Some(first @ Value::Array(_))) => (Some(first), map.get("additionalItems")),
            (first, rest) => (first, rest),
        };
        let others = self.most_of(rest)?;
        found.items += others + self.most_of(map.get("contains"))? + self.most_of(map.get("unevaluatedItems"))?;
        for (position, item) in first.and_then(Value::as_array).into_iter().flatten().enumerate() {
            *found.positions.entry(position).or_default() += self.most_of(Some(item))? - others;
        }
        Ok(())
    }

    fn most_of(&mut self, part: Option<&'s Value>) -> Result<i64, String> {
        part.map_or(Ok(0), |part| Ok(self.returns(part)?.most()))
    }
}

/// What a reference means; `None` for the published schemas of JSON Schema itself, which the validator knows.
fn resolve<'s>(
    reference: &str,
    schema: &'s Value,
    anchors: &HashMap<&'s str, &'s Value>,
) -> Result<Option<&'s Value>, String> {
    let Some(fragment) = reference.strip_prefix('#') else {
        if reference.starts_with("https://json-schema.org/") || reference.starts_with("http://json-schema.org/") {
            return Ok(None);
        }
        return Err(format!("the reference `{reference}` leads outside: nothing is fetched, refer to `#/$defs/name`"));
    };
    let target = match fragment {
        "" => Some(schema),
        pointer if pointer.starts_with('/') => schema.pointer(&percent_decoded(pointer)),
        name => anchors.get(name).copied(),
    };
    target.map(Some).ok_or_else(|| format!("the reference `{reference}` leads nowhere in this schema"))
}

/// A fragment is part of a URI, in which `$` or a space may be written `%24` and `%20`.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let decoded = match (first, after) {
            (b'%', [high, low, ..]) => hex::decode([*high, *low]).ok().and_then(|byte| byte.first().copied()),
            _ => None,
        };
        rest = if decoded.is_some() { &after[2..] } else { after };
        bytes.push(decoded.unwrap_or(*first));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
