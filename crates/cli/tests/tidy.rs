//! The house rules that a compiler does not know, over the whole workspace.

use std::fs;
use std::path::{Path, PathBuf};

/// Widest comment, and widest line of a script, in characters.
const WIDTH: usize = 100;
/// Widest line of code: rustfmt breaks it at 100, unless a string or a macro is in the way.
const CODE_WIDTH: usize = 120;
/// A file longer than this opens with its theory.
const SHORT: usize = 100;
/// A file longer than this holds two ideas.
const LONG: usize = 800;
/// Programs that test others; their locks have no place in the order.
const TOOLS: [&str; 4] = ["torture", "sim", "bench", "suite"];
/// Crates that may be unsafe, in small modules.
const UNSAFE: [&str; 4] = ["runtime", "device", "fuse", "log"];

#[test]
fn the_workspace_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for directory in ["crates", "scripts", "fuzz", ".ci"] {
        collect(&root.join(directory), &mut files);
    }
    assert!(files.len() > 50, "the workspace is not where this test looks for it");
    let complaints: Vec<String> = files.iter().flat_map(|path| complaints(path)).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let root = ["src/lib.rs", "src/main.rs"].map(|file| path.join(file));
        let Some(root) = root.iter().find(|file| file.is_file()) else { continue };
        let text = fs::read_to_string(root).unwrap();
        let says = text.contains("(unsafe_code)]") || text.contains("(unsafe_code,");
        assert!(says || UNSAFE.contains(&name.as_str()), "{name} says nothing of unsafe_code");
    }
}

/// Each lock has its place in the order (`copyhold_sync::Rank`).
#[test]
fn blocking_locks_come_from_the_crate_that_orders_them() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        let is_tool = TOOLS.iter().any(|tool| path.ends_with(tool));
        if !is_tool && !path.ends_with("sync") {
            collect(&path.join("src"), &mut files);
        }
    }
    files.retain(|path| !path.ends_with("types/src/spare.rs"));
    let of_std = |line: &str| line.contains("std::sync::") && !line.trim().starts_with("//");
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let locks = ["Mutex", "RwLock", "Condvar", "Barrier"];
        let has = |line: &str| of_std(line) && locks.iter().any(|lock| line.contains(lock));
        let line = text.lines().find(|line| has(line));
        assert!(line.is_none(), "{}: {}", path.display(), line.unwrap_or_default());
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            if !path.ends_with("target") && !path.ends_with("__pycache__") {
                collect(&path, files);
            }
        } else if matches!(extension, Some("rs" | "sh" | "py" | "c" | "toml")) {
            files.push(path);
        }
    }
}

fn complaints(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let lines = text.lines().count();
    let mut found = Vec::new();
    let mut complain = |line: usize, what: &str| {
        found.push(format!("{}:{line}: {what}", path.display()));
    };
    let is_tests = path.file_name().is_some_and(|name| name == "tests.rs");
    if is_rust && !is_tests && lines > SHORT && !text.trim_start_matches("#!").starts_with("//!") {
        complain(1, "a long file opens with its theory (//!)");
    }
    if is_rust && lines > LONG {
        complain(lines, "a file this long holds two ideas");
    }
    // In two pieces, so that this file does not complain about itself.
    let leftovers = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[ig", "nore"),
        concat!("dbg", "!("),
    ];
    for (number, line) in text.lines().enumerate() {
        let is_code = is_rust && !line.trim_start().starts_with("//");
        let widest = if is_code { CODE_WIDTH } else { WIDTH };
        if line.chars().count() > widest {
            complain(number + 1, "too wide");
        }
        if leftovers.iter().any(|leftover| line.contains(leftover)) {
            complain(number + 1, "a leftover");
        }
        if line.ends_with([' ', '\t']) {
            complain(number + 1, "blanks at the end of the line");
        }
    }
    found
}
