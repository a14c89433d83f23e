//! The types of a validated component, in the terms of `shape`.
//!
//! A component can make a type that is small in its file and enormous when it is written out: what is read is bounded.

use std::collections::HashMap;

use wasmparser::component_types::{
    AliasableResourceId, ComponentAnyTypeId, ComponentDefinedType, ComponentDefinedTypeId, ComponentEntityType,
    ComponentFuncTypeId, ComponentInstanceTypeId, ComponentValType, ResourceId,
};
use wasmparser::types::TypesRef;

use super::shape::{Kind, Shape, Signature};

/// How many types are read for one function.
const TYPES_MAX: u32 = 20_000;
/// How deep.
const DEPTH_MAX: u32 = 64;

/// A component's types, and the names that it gives them.
pub(super) struct Found<'t> {
    types: TypesRef<'t>,
    names: HashMap<ComponentAnyTypeId, &'t str>,
    resources: HashMap<ResourceId, &'t str>,
}

/// What an import or an export is.
pub(super) enum Item<'t> {
    Interface(Vec<(&'t str, Option<ComponentFuncTypeId>)>),
    Other(&'static str),
}

impl<'t> Found<'t> {
    /// Collects the names that the interfaces called `interfaces` give to types.
    pub fn new(types: TypesRef<'t>, imports: &[String], exports: &[String]) -> Found<'t> {
        let mut found = Found { types, names: HashMap::new(), resources: HashMap::new() };
        let imports = imports.iter().filter_map(|name| types.component_item_for_import(name));
        let exports = exports.iter().filter_map(|name| types.component_item_for_export(name));
        for item in imports.chain(exports) {
            if let ComponentEntityType::Instance(id) = item.ty {
                found.name_types(id);
            }
        }
        found
    }

    fn name_types(&mut self, id: ComponentInstanceTypeId) {
        let Some(instance) = self.types.get(id) else { return };
        for (name, item) in &instance.exports {
            if let ComponentEntityType::Type { created, .. } = item.ty {
                if let ComponentAnyTypeId::Resource(resource) = created {
                    self.resources.entry(resource.resource()).or_insert(name);
                }
                self.names.entry(created).or_insert(name);
            }
        }
    }

    pub fn import(&self, name: &str) -> Option<Item<'t>> {
        self.types.component_item_for_import(name).map(|item| self.item(&item.ty))
    }

    pub fn export(&self, name: &str) -> Option<Item<'t>> {
        self.types.component_item_for_export(name).map(|item| self.item(&item.ty))
    }

    fn item(&self, ty: &ComponentEntityType) -> Item<'t> {
        match ty {
            ComponentEntityType::Instance(id) => {
                let exports = self.types.get(*id).into_iter().flat_map(|instance| &instance.exports);
                let functions = exports.filter_map(|(name, item)| match item.ty {
                    ComponentEntityType::Func(id) => Some((name.as_str(), Some(id))),
                    ComponentEntityType::Type { .. } => None,
                    _ => Some((name.as_str(), None)),
                });
                Item::Interface(functions.collect())
            }
            ComponentEntityType::Module(_) => Item::Other("a core module"),
            ComponentEntityType::Func(_) => Item::Other("a func"),
            ComponentEntityType::Value(_) => Item::Other("a value"),
            ComponentEntityType::Type { .. } => Item::Other("a type"),
            ComponentEntityType::Component(_) => Item::Other("a component"),
        }
    }

    pub fn signature(&self, id: ComponentFuncTypeId) -> Option<Signature> {
        let function = self.types.get(id)?;
        let mut reading = Reading { found: self, left: TYPES_MAX };
        let params =
            function.params.iter().map(|(name, ty)| (name.as_str().to_owned(), reading.value(*ty, 0))).collect();
        let result = function.result.map(|ty| reading.value(ty, 0));
        Some(Signature { params, result })
    }

    fn resource(&self, id: AliasableResourceId) -> Option<String> {
        self.resources.get(&id.resource()).map(|name| (*name).to_owned())
    }
}

struct Reading<'f, 't> {
    found: &'f Found<'t>,
    left: u32,
}

impl Reading<'_, '_> {
    fn value(&mut self, ty: ComponentValType, depth: u32) -> Shape {
        match ty {
            ComponentValType::Primitive(ty) => Shape::plain(Kind::Primitive(ty.to_string())),
            ComponentValType::Type(id) => self.defined(id, depth + 1),
        }
    }

    fn defined(&mut self, id: ComponentDefinedTypeId, depth: u32) -> Shape {
        let name = self.found.names.get(&ComponentAnyTypeId::Defined(id)).map(|name| (*name).to_owned());
        let Some(left) = self.left.checked_sub(1).filter(|_| depth <= DEPTH_MAX) else {
            return Shape { name, kind: Kind::Other("a type too large to compare".to_owned()) };
        };
        self.left = left;
        let Some(ty) = self.found.types.get(id) else {
            return Shape { name, kind: Kind::Other("unknown".to_owned()) };
        };
        let kind = match ty {
            // A name for a primitive is no type of its own.
            ComponentDefinedType::Primitive(ty) => return Shape::plain(Kind::Primitive(ty.to_string())),
            ComponentDefinedType::Record(record) => Kind::Record(
                record.fields.iter().map(|(name, ty)| (name.as_str().to_owned(), self.value(*ty, depth))).collect(),
            ),
            ComponentDefinedType::Variant(variant) => Kind::Variant(
                variant
                    .cases
                    .iter()
                    .map(|(name, case)| (name.as_str().to_owned(), case.ty.map(|ty| self.value(ty, depth))))
                    .collect(),
            ),
            ComponentDefinedType::Enum(cases) => {
                Kind::Enum(cases.iter().map(|name| name.as_str().to_owned()).collect())
            }
            ComponentDefinedType::Flags(flags) => {
                Kind::Flags(flags.iter().map(|name| name.as_str().to_owned()).collect())
            }
            ComponentDefinedType::Tuple(tuple) => {
                Kind::Tuple(tuple.types.iter().map(|ty| self.value(*ty, depth)).collect())
            }
            ComponentDefinedType::List { element, .. } => Kind::List(Box::new(self.value(*element, depth))),
            ComponentDefinedType::Option { ty, .. } => Kind::Option(Box::new(self.value(*ty, depth))),
            ComponentDefinedType::Result { ok, err, .. } => {
                let ok = ok.map(|ty| Box::new(self.value(ty, depth)));
                Kind::Result(ok, err.map(|ty| Box::new(self.value(ty, depth))))
            }
            ComponentDefinedType::Own(resource) => Kind::Own(self.found.resource(*resource)),
            ComponentDefinedType::Borrow(resource) => Kind::Borrow(self.found.resource(*resource)),
            ComponentDefinedType::Map { .. } => Kind::Other("map".to_owned()),
            ComponentDefinedType::FixedLengthList { .. } => Kind::Other("list of a fixed length".to_owned()),
            ComponentDefinedType::Future { .. } => Kind::Other("future".to_owned()),
            ComponentDefinedType::Stream { .. } => Kind::Other("stream".to_owned()),
        };
        Shape { name, kind }
    }
}
