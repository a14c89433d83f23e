//! What this host expects, read from the very files of `wit/` that guests are built against.
//!
//! It knows no component.

use std::sync::LazyLock;

use wit_parser::{Handle, InterfaceId, Resolve, Type, TypeDefKind, TypeId};

use super::shape::{Kind, Shape, Signature};

/// Every package of `wit/`, dependencies first.
const SOURCES: [(&str, &str); 7] = [
    ("io.wit", include_str!("../../../wit/deps/io.wit")),
    ("random.wit", include_str!("../../../wit/deps/random.wit")),
    ("clocks.wit", include_str!("../../../wit/deps/clocks.wit")),
    ("filesystem.wit", include_str!("../../../wit/deps/filesystem.wit")),
    ("sockets.wit", include_str!("../../../wit/deps/sockets.wit")),
    ("cli.wit", include_str!("../../../wit/deps/cli.wit")),
    ("http.wit", include_str!("../../../wit/deps/http.wit")),
];

/// The package of ours, whose files make one.
const OURS: [(&str, &str); 3] = [
    ("types.wit", include_str!("../../../wit/types.wit")),
    ("host.wit", include_str!("../../../wit/host.wit")),
    ("action.wit", include_str!("../../../wit/action.wit")),
];

/// Read once; `None` only if the files of this very build do not parse, which a test rules out. Then the linker alone says
/// what does not fit.
static EXPECTED: LazyLock<Option<Expected>> = LazyLock::new(|| Expected::read().ok());

/// The interfaces of `wit/`.
pub(super) struct Expected {
    resolve: Resolve,
}

impl Expected {
    /// Those of this build.
    pub fn of_this_host() -> Option<&'static Expected> {
        EXPECTED.as_ref()
    }

    fn read() -> Result<Expected, String> {
        // Interfaces marked unstable are left to the linker; knowing them refuses nothing that it would take.
        let mut resolve = Resolve { all_features: true, ..Resolve::default() };
        for (path, text) in SOURCES {
            resolve.push_source(path, text).map_err(|error| format!("{path}: {error:#}"))?;
        }
        let mut ours = wit_parser::SourceMap::new();
        for (path, text) in OURS {
            ours.push_str(path, text);
        }
        let group = ours.parse().map_err(|(_, error)| format!("wit/: {error}"))?;
        resolve.push_group(group).map_err(|error| format!("wit/: {error:?}"))?;
        Ok(Expected { resolve })
    }

    /// The functions of `wasi:io/streams@0.2.3`, in the version that this host has; `None` where it has no such interface.
    pub fn functions(&self, name: &str) -> Option<Vec<(String, Signature)>> {
        let (namespace, rest) = name.split_once(':')?;
        let (package, rest) = rest.split_once('/')?;
        let interface = rest.split_once('@').map_or(rest, |(interface, _)| interface);
        let (_, package) = self
            .resolve
            .packages
            .iter()
            .find(|(_, found)| found.name.namespace == namespace && found.name.name == package)?;
        Some(self.functions_of(*package.interfaces.get(interface)?))
    }

    fn functions_of(&self, id: InterfaceId) -> Vec<(String, Signature)> {
        let Some(interface) = self.resolve.interfaces.get(id) else { return Vec::new() };
        let signature = |function: &wit_parser::Function| Signature {
            params: function.params.iter().map(|param| (param.name.clone(), self.shape(param.ty))).collect(),
            result: function.result.map(|ty| self.shape(ty)),
        };
        interface.functions.iter().map(|(name, function)| (name.clone(), signature(function))).collect()
    }

    fn shape(&self, ty: Type) -> Shape {
        let primitive = |name: &str| Shape::plain(Kind::Primitive(name.to_owned()));
        match ty {
            Type::Bool => primitive("bool"),
            Type::U8 => primitive("u8"),
            Type::U16 => primitive("u16"),
            Type::U32 => primitive("u32"),
            Type::U64 => primitive("u64"),
            Type::S8 => primitive("s8"),
            Type::S16 => primitive("s16"),
            Type::S32 => primitive("s32"),
            Type::S64 => primitive("s64"),
            Type::F32 => primitive("f32"),
            Type::F64 => primitive("f64"),
            Type::Char => primitive("char"),
            Type::String => primitive("string"),
            Type::ErrorContext => primitive("error-context"),
            Type::Id(id) => self.defined(id),
        }
    }

    fn defined(&self, id: TypeId) -> Shape {
        let Some(def) = self.resolve.types.get(id) else { return Shape::plain(Kind::Other("unknown".to_owned())) };
        let boxed = |ty: Type| Box::new(self.shape(ty));
        let kind = match &def.kind {
            // What a name stands for; `json` is a `string`.
            TypeDefKind::Type(ty) => return self.shape(*ty),
            TypeDefKind::Record(record) => {
                Kind::Record(record.fields.iter().map(|field| (field.name.clone(), self.shape(field.ty))).collect())
            }
            TypeDefKind::Variant(variant) => Kind::Variant(
                variant.cases.iter().map(|case| (case.name.clone(), case.ty.map(|ty| self.shape(ty)))).collect(),
            ),
            TypeDefKind::Enum(all) => Kind::Enum(all.cases.iter().map(|case| case.name.clone()).collect()),
            TypeDefKind::Flags(all) => Kind::Flags(all.flags.iter().map(|flag| flag.name.clone()).collect()),
            TypeDefKind::Tuple(tuple) => Kind::Tuple(tuple.types.iter().map(|ty| self.shape(*ty)).collect()),
            TypeDefKind::List(ty) => Kind::List(boxed(*ty)),
            TypeDefKind::Option(ty) => Kind::Option(boxed(*ty)),
            TypeDefKind::Result(result) => Kind::Result(result.ok.map(boxed), result.err.map(boxed)),
            TypeDefKind::Handle(Handle::Own(resource)) => Kind::Own(self.resource(*resource)),
            TypeDefKind::Handle(Handle::Borrow(resource)) => Kind::Borrow(self.resource(*resource)),
            other => Kind::Other(other.as_str().to_owned()),
        };
        Shape { name: def.name.clone(), kind }
    }

    /// The name that a resource has where it is defined.
    fn resource(&self, id: TypeId) -> Option<String> {
        let def = self.resolve.types.get(id)?;
        match def.kind {
            TypeDefKind::Type(Type::Id(aliased)) => self.resource(aliased),
            _ => def.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_this_build_parse_and_say_what_is_exported() {
        let expected = Expected::read().unwrap_or_else(|error| panic!("{error}"));
        let functions = expected.functions("tollgate:action/actions@0.1.0").expect("it is ours");
        let said: Vec<String> = functions.iter().map(|(name, signature)| format!("{name}: {signature}")).collect();
        assert_eq!(
            said,
            [
                "describe: func() -> list<action-descriptor>",
                "authorize: func(action: string, context: context, config: string) -> result<_, string>",
                "plan: func(action: string, context: context, config: string) -> result<planned, failure>",
                "run: func(action: string, context: context, config: string) -> outcome",
                "reconcile: func(action: string, context: context, config: string) -> result<fate, failure>",
            ]
        );
        let streams = expected.functions("wasi:io/streams@0.2.0").expect("the host has it");
        let (_, read) = streams.iter().find(|(name, _)| name == "[method]input-stream.read").expect("it has that");
        assert_eq!(read.to_string(), "func(self: borrow<input-stream>, len: u64) -> result<list<u8>, stream-error>");
        assert!(expected.functions("acme:db/query").is_none());
    }
}
