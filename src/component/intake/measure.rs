//! One pass over the bytes before anything else looks at them: what they are, whether they are whole, and how much work
//! they would be to validate and compile.
//!
//! It neither validates nor compiles, and stops at the first nesting that is too deep to go on.

use wasmparser::{Chunk, Error, FunctionBody, Operator, Parser, Payload};

use super::IntakeError;

/// How much of everything a component may have. What is past them can take a compiler minutes or gigabytes however small
/// the file is, so they are counted first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// All of it. A Python guest has 18 MB.
    pub bytes: u64,
    /// Components within components within components.
    pub component_depth: u64,
    /// Core modules.
    pub modules: u64,
    /// Types, instances, aliases, imports and exports, of the component and everything in it.
    pub items: u64,
    /// Functions with a body, of all modules together.
    pub functions: u64,
    /// The body of one function, in bytes.
    pub function_bytes: u64,
    /// The locals of one function.
    pub locals: u64,
    /// Blocks within blocks in one function.
    pub nesting: u64,
    /// The depths of all loops in one function, added up, times the locals that it uses: a loop may carry every local, for
    /// every loop around it. It is this that a compiler takes minutes for, however small the file.
    pub loop_work: u64,
    /// The same of all functions together.
    pub loop_work_total: u64,
    /// Targets of all branch tables in one function.
    pub branch_targets: u64,
}

impl Default for Caps {
    /// Five times or more what the largest guests in use have. An interpreter of JavaScript and one of Python have at most
    /// 19,852 functions, and in one of them 426,843 bytes, 483 locals, 781 nested blocks, 127,978 of [`loop_work`] and 15,805
    /// targets. A function at the cap of `loop_work` compiles in one to four seconds; at ten times as much, in ten or more.
    ///
    /// [`loop_work`]: Caps::loop_work
    fn default() -> Caps {
        Caps {
            bytes: 64 << 20,
            component_depth: 32,
            modules: 128,
            items: 500_000,
            functions: 200_000,
            function_bytes: 2 << 20,
            locals: 5_000,
            nesting: 4_000,
            loop_work: 1_000_000,
            loop_work_total: 5_000_000,
            branch_targets: 100_000,
        }
    }
}

impl Caps {
    /// Why a component of so many bytes is not looked at.
    pub(super) fn fault_of_size(&self, found: usize) -> Option<String> {
        (found as u64 > self.bytes).then(|| {
            format!(
                "the component has {found} bytes, and at most {} are accepted; build it in release mode, with `strip`",
                self.bytes
            )
        })
    }

    fn faults(&self, found: &Measured) -> Vec<String> {
        let whole = "the component";
        let function = |index: u64| format!("function {index} of one of its modules");
        let checks = [
            (whole.to_owned(), found.component_depth, self.component_depth, "components nested in each other"),
            (whole.to_owned(), found.modules, self.modules, "core modules"),
            (whole.to_owned(), found.items, self.items, "types, instances, aliases, imports and exports"),
            (whole.to_owned(), found.functions, self.functions, "functions"),
            (function(found.function_bytes.1), found.function_bytes.0, self.function_bytes, "bytes"),
            (function(found.locals.1), found.locals.0, self.locals, "locals"),
            (function(found.nesting.1), found.nesting.0, self.nesting, "blocks nested in each other"),
            (function(found.loop_work.1), found.loop_work.0, self.loop_work, "for its loops in loops times its locals"),
            (
                whole.to_owned(),
                found.loop_work_total,
                self.loop_work_total,
                "for all of its loops in loops times locals",
            ),
            (function(found.branch_targets.1), found.branch_targets.0, self.branch_targets, "targets of branch tables"),
        ];
        checks
            .into_iter()
            .filter(|(_, found, cap, _)| found > cap)
            .map(|(whose, found, cap, what)| format!("{whose} has {found} {what}, and at most {cap} are compiled"))
            .collect()
    }
}

/// How much of everything a component has; of functions the most of any, and which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Measured {
    component_depth: u64,
    modules: u64,
    items: u64,
    functions: u64,
    function_bytes: (u64, u64),
    locals: (u64, u64),
    nesting: (u64, u64),
    loop_work: (u64, u64),
    loop_work_total: u64,
    branch_targets: (u64, u64),
}

impl Measured {
    fn body(&mut self, index: u64, body: &FunctionBody<'_>, caps: &Caps) -> Result<(), Error> {
        let most = |kept: &mut (u64, u64), found: u64| {
            if found > kept.0 {
                *kept = (found, index);
            }
        };
        self.functions += 1;
        let bytes = body.range().len() as u64;
        most(&mut self.function_bytes, bytes);
        let mut locals = 0_u64;
        for group in body.get_locals_reader()? {
            locals = locals.saturating_add(u64::from(group?.0));
        }
        most(&mut self.locals, locals);
        if bytes > caps.function_bytes {
            // It is refused for its size; nobody needs to know what else is in it.
            return Ok(());
        }
        let (mut deepest, mut loop_depth, mut loop_depths, mut used, mut targets) = (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
        // Whether each block that is open is a loop.
        let mut open: Vec<bool> = Vec::new();
        let mut operators = body.get_operators_reader()?;
        while !operators.eof() {
            match operators.read()? {
                Operator::Loop { .. } => {
                    open.push(true);
                    loop_depth += 1;
                    loop_depths = loop_depths.saturating_add(loop_depth);
                }
                Operator::Block { .. } | Operator::If { .. } | Operator::TryTable { .. } => open.push(false),
                // The last one ends the function, which is no block.
                Operator::End => loop_depth -= u64::from(open.pop().unwrap_or(false)),
                Operator::BrTable { targets: table } => targets += u64::from(table.len()),
                Operator::LocalGet { local_index }
                | Operator::LocalSet { local_index }
                | Operator::LocalTee { local_index } => used = used.max(u64::from(local_index) + 1),
                _ => {}
            }
            deepest = deepest.max(open.len() as u64);
        }
        most(&mut self.nesting, deepest);
        let loop_work = loop_depths.saturating_mul(used);
        most(&mut self.loop_work, loop_work);
        self.loop_work_total = self.loop_work_total.saturating_add(loop_work);
        most(&mut self.branch_targets, targets);
        Ok(())
    }
}

/// What a component is made of, on the outside: the names of what it imports and exports, in order.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
}

/// Tells everything that is no component apart by its first bytes.
pub(super) fn recognise(bytes: &[u8]) -> Result<(), IntakeError> {
    let other = |text: String| Err(IntakeError::NotAComponent(text));
    match bytes {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => other(
            "this is a core WebAssembly module, not a component. Build it for the target wasm32-wasip2, or wrap it with \
             `wasm-tools component new`"
                .to_owned(),
        ),
        [0, b'a', b's', b'm', 1, 0] | [0, b'a', b's', b'm', 1, 0, 0] | [0, b'a', b's', b'm', 0x0d, ..]
            if bytes.len() < 8 =>
        {
            Err(cut_off(bytes.len(), "in the middle of its first 8 bytes"))
        }
        [0, b'a', b's', b'm', a, b, c, d, ..] => other(format!(
            "this is WebAssembly of another version than this host knows: found {a:02x} {b:02x} {c:02x} {d:02x}, expected \
             0d 00 01 00, a component"
        )),
        [] => other("the file is empty".to_owned()),
        _ if bytes.len() < 8 && b"\0asm".starts_with(&bytes[..bytes.len().min(4)]) => {
            Err(cut_off(bytes.len(), "in the middle of its first 8 bytes"))
        }
        _ => other("this is not WebAssembly: it does not begin with 00 61 73 6d".to_owned()),
    }
}

fn cut_off(at: usize, inside: &str) -> IntakeError {
    IntakeError::Truncated(format!(
        "the file is cut off: it ends after {at} bytes, {inside}. Copy it again, or build it again"
    ))
}

fn invalid(error: &Error) -> IntakeError {
    IntakeError::Invalid(format!("the component is not valid: {} (at byte {})", error.message(), error.offset()))
}

/// Measures a component against `caps`.
pub(super) fn measure(bytes: &[u8], caps: &Caps) -> Result<Outline, IntakeError> {
    let mut found = Measured::default();
    let mut outline = Outline::default();
    let mut parser = Parser::new(0);
    let mut outer = Vec::new();
    let mut functions_in_module = 0_u64;
    let mut rest = bytes;
    loop {
        // Where nothing is left everything that was begun has ended: whatever says that it is longer was refused below.
        let (consumed, payload) = match parser.parse(rest, rest.is_empty()).map_err(|error| invalid(&error))? {
            Chunk::Parsed { consumed, payload } => (consumed, payload),
            Chunk::NeedMoreData(_) => return Err(cut_off(bytes.len(), "in the middle of a section")),
        };
        rest = &rest[consumed..];
        let faulty = |error: Error| invalid(&error);
        match payload {
            Payload::ModuleSection { unchecked_range, .. } | Payload::ComponentSection { unchecked_range, .. }
                if unchecked_range.end > bytes.len() =>
            {
                return Err(cut_off(bytes.len(), "in the middle of a module or component within it"));
            }
            Payload::ModuleSection { parser: inner, .. } => {
                found.modules += 1;
                functions_in_module = 0;
                outer.push(std::mem::replace(&mut parser, inner));
            }
            Payload::ComponentSection { parser: inner, .. } => {
                outer.push(std::mem::replace(&mut parser, inner));
                found.component_depth = found.component_depth.max(outer.len() as u64);
                if found.component_depth > caps.component_depth {
                    break;
                }
            }
            Payload::End(_) => match outer.pop() {
                Some(outside) => parser = outside,
                None => break,
            },
            Payload::ImportSection(section) => functions_in_module += imported_functions(section).map_err(faulty)?,
            Payload::CodeSectionEntry(body) => {
                found.body(functions_in_module, &body, caps).map_err(faulty)?;
                functions_in_module += 1;
            }
            Payload::ComponentImportSection(section) => {
                found.items += u64::from(section.count());
                if outer.is_empty() {
                    for import in section {
                        outline.imports.push(import.map_err(faulty)?.name.name.to_owned());
                    }
                }
            }
            Payload::ComponentExportSection(section) => {
                found.items += u64::from(section.count());
                if outer.is_empty() {
                    for export in section {
                        outline.exports.push(export.map_err(faulty)?.name.name.to_owned());
                    }
                }
            }
            Payload::InstanceSection(section) => found.items += u64::from(section.count()),
            Payload::CoreTypeSection(section) => found.items += u64::from(section.count()),
            Payload::ComponentInstanceSection(section) => found.items += u64::from(section.count()),
            Payload::ComponentAliasSection(section) => found.items += u64::from(section.count()),
            Payload::ComponentTypeSection(section) => found.items += u64::from(section.count()),
            Payload::ComponentCanonicalSection(section) => found.items += u64::from(section.count()),
            Payload::TypeSection(section) => found.items += u64::from(section.count()),
            _ => {}
        }
    }
    let faults = caps.faults(&found);
    if faults.is_empty() { Ok(outline) } else { Err(IntakeError::TooMuch(faults)) }
}

/// How many functions a core module imports: they are numbered before its own.
fn imported_functions(section: wasmparser::ImportSectionReader<'_>) -> Result<u64, Error> {
    let mut count = 0;
    for import in section.into_imports() {
        count += u64::from(matches!(import?.ty, wasmparser::TypeRef::Func(_)));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: &str) {
        let refused = recognise(bytes).expect_err("it is no component").to_string();
        assert!(refused.contains(expected), "{refused} should mention {expected}");
    }

    #[test]
    fn what_is_no_component_is_told_by_its_first_bytes() {
        check(b"", "empty");
        check(b"\0as", "cut off");
        check(b"\0asm\x0d\0\x01", "cut off");
        check(b"\0asm\x01\0\0\0", "core WebAssembly module");
        check(b"\0asm\x0e\0\x01\0", "found 0e 00 01 00, expected 0d 00 01 00");
        check(b"#!/bin/sh\n", "not WebAssembly");
        check(b"#!", "not WebAssembly");
        assert!(recognise(b"\0asm\x0d\0\x01\0").is_ok());
    }

    #[track_caller]
    fn too_much(component: &[u8], caps: &Caps) -> Vec<String> {
        match measure(component, caps) {
            Err(IntakeError::TooMuch(faults)) => faults,
            other => panic!("it should be too much: {other:?}"),
        }
    }

    /// Every cap says no, and all of them that are passed say so together.
    #[test]
    fn every_cap_is_counted() {
        let component = wat::parse_str(
            r#"(component
                (component (component (type string) (type u8)))
                (core module (func) (func))
                (core module
                    (import "a" "f" (func))
                    (func (local i32 i64 i64) (loop (loop (block (local.set 2 (i64.const 0)) (br_table 0 1 2 0 (i32.const 0))))))))"#,
        )
        .expect("it is WAT");
        let none = Caps {
            bytes: 1,
            component_depth: 1,
            modules: 1,
            items: 1,
            functions: 2,
            function_bytes: 100,
            locals: 2,
            nesting: 2,
            loop_work: 8,
            loop_work_total: 8,
            branch_targets: 2,
        };
        assert!(none.fault_of_size(component.len()).is_some());
        let faults = too_much(&component, &Caps { component_depth: 2, ..none.clone() });
        for expected in [
            "core modules",
            "types, ",
            "3 functions",
            "3 locals",
            "3 blocks",
            "9 for its loops",
            "9 for all of its loops",
            "3 targets",
        ] {
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected} in {faults:#?}");
        }
        assert!(faults.iter().any(|fault| fault.contains("function 1 of")), "{faults:#?}");
        let faults = too_much(&component, &none);
        assert!(faults[0].contains("2 components nested"), "{faults:#?}");
        let faults = too_much(&component, &Caps { function_bytes: 9, ..Caps::default() });
        assert!(faults[0].contains("bytes, and at most 9"), "{faults:#?}");
        assert!(measure(&component, &Caps::default()).is_ok());
    }
}
