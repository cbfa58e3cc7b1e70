//! The house rules that a compiler does not know, over the whole workspace.

#[path = "tidy/cycles.rs"]
mod cycles;

use std::collections::BTreeMap;
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
/// The types with methods in many files: crate, file of the definition, name, most methods, most
/// fields that the crate sees. A capability is a component with private fields, so these only fall.
const LARGE: [(&str, &str, &str, usize, usize); 3] = [
    ("pool", "pool.rs", "Pool", 157, 26),
    ("fs", "filesystem.rs", "Filesystem", 295, 13),
    ("volume", "volumes.rs", "Volumes", 92, 2),
];
/// Most comment lines of the programs with a subject that is no thing of the field. It only falls.
const VAGUE_MAX: usize = 103;
const VAGUE: [&str; 6] = ["what", "who", "whoever", "somebody", "nobody", "anybody"];

#[test]
fn the_workspace_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for directory in ["crates", "scripts", "tests", "fuzz", ".ci"] {
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
        assert!(says, "{name} says nothing of unsafe_code");
    }
}

#[test]
fn large_types_only_shrink() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (of, file, name, methods_max, fields_max) in LARGE {
        let source = crates.join(of).join("src");
        let mut paths = Vec::new();
        collect(&source, &mut paths);
        let texts = paths.iter().map(|path| fs::read_to_string(path).unwrap());
        let methods: usize = texts.map(|text| methods(&text, name)).sum();
        assert!(methods > 0 && methods <= methods_max, "{name}: {methods} methods");
        let text = fs::read_to_string(source.join(file)).unwrap();
        let fields = block(&text, &format!("pub struct {name} {{"))
            .filter(|line| line.starts_with("    pub"))
            .count();
        assert!(fields <= fields_max, "{name}: the crate sees {fields} of its fields");
    }
}

/// Methods of a type in one file.
fn methods(text: &str, name: &str) -> usize {
    let is_method = |line: &&str| {
        let line = line.strip_prefix("    ").filter(|line| !line.starts_with(' '));
        line.is_some_and(|line| {
            line.split("fn ").next().is_some_and(|before| {
                before.len() < line.len() && before.split_whitespace().all(is_qualifier)
            })
        })
    };
    let head = format!("impl {name} {{");
    text.match_indices(&head)
        .map(|(at, _)| block(&text[at..], &head).filter(is_method).count())
        .sum()
}

fn is_qualifier(word: &str) -> bool {
    matches!(word, "pub" | "pub(crate)" | "pub(super)" | "async" | "const")
}

/// Lines from behind this one to the end of its block.
fn block<'t>(text: &'t str, head: &str) -> impl Iterator<Item = &'t str> {
    let from = text.find(head).map_or(text.len(), |at| at + head.len());
    text[from..].lines().skip(1).take_while(|line| *line != "}")
}

#[test]
fn vague_sentences_only_become_fewer() {
    let mut paths = Vec::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap() {
        collect(&entry.unwrap().path().join("src"), &mut paths);
    }
    let texts = paths.iter().map(|path| fs::read_to_string(path).unwrap());
    let comment = |line: &str| line.trim_start().strip_prefix("//").is_some_and(is_vague);
    let vague: usize = texts.map(|text| text.lines().filter(|line| comment(line)).count()).sum();
    assert!(vague <= VAGUE_MAX, "{vague} comment lines with a vague subject, at most {VAGUE_MAX}");
}

/// Prose only: not blocks of code.
#[test]
fn no_page_has_a_vague_sentence() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|p| root.join(p)).to_vec();
    pages.push(root.join("CHANGELOG.md"));
    collect(&root.join("docs"), &mut pages);
    pages.retain(|path| has_extension(path, "md"));
    assert!(pages.len() > 10, "the pages are not where this test looks for them");
    for path in pages {
        let mut is_code = false;
        for line in fs::read_to_string(&path).unwrap().lines() {
            is_code ^= line.starts_with("```");
            let is_prose = !is_code && !line.starts_with("    ");
            assert!(!is_prose || !is_vague(line), "{}: {line}", path.display());
        }
    }
}

/// Whether a clause of the line begins with a vague word, or has one of those without a referent.
fn is_vague(line: &str) -> bool {
    let line = line.trim_start_matches(['/', '!']).to_lowercase();
    let mut begins = true;
    line.split_whitespace().any(|word| {
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        let anywhere = VAGUE[2..].contains(&bare);
        let found = anywhere || begins && VAGUE.contains(&bare);
        begins = word.ends_with(['.', ',', ':', ';']);
        found
    })
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

/// The heads of Rust files define ids. Pages define those of RECOUNT, URING and LOOKUP, which no
/// single file keeps, and a script those of SQL.
#[test]
fn each_invariant_has_an_id_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    for directory in ["crates", "shuttle", "fuzz", "docs", "scripts"] {
        collect(&root.join(directory), &mut paths);
    }
    let beside = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(beside.filter(|path| has_extension(path, "md")));
    let texts: Vec<String> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let files: Vec<(&Path, &str)> =
        paths.iter().zip(&texts).map(|(path, text)| (path.as_path(), text.as_str())).collect();

    let mut found = Vec::new();
    let defined = definitions(&files, &mut found);
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for (id, path) in &defined {
        let path = path.strip_prefix(&root).unwrap().to_str().unwrap();
        found.extend(unlisted(&page, id, path));
    }
    assert!(defined.len() > 200, "ids are not written as this test reads them");
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            for wrong in wrong_ids(path, line, &defined) {
                found.push(format!("{}:{}: {wrong}", path.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Each id with the file that defines it. Adds to `found` the ids that are defined twice, and the
/// prefixes that two files use.
fn definitions<'t>(
    files: &[(&'t Path, &'t str)],
    found: &mut Vec<String>,
) -> BTreeMap<&'t str, &'t Path> {
    let mut defined = BTreeMap::new();
    let mut owners = BTreeMap::new();
    for &(path, text) in files {
        for id in text.lines().filter_map(definition) {
            if defined.insert(id, path).is_some() {
                found.push(format!("{}: {id} is defined twice", path.display()));
            }
            let prefix = id.split('-').next();
            let owner = *owners.entry(prefix).or_insert(path);
            if owner != path {
                found.push(format!("{}: {} owns {id}", path.display(), owner.display()));
            }
        }
    }
    defined
}

/// A complaint, if section 10 of the page does not name the file of this id's prefix.
fn unlisted(page: &str, id: &str, path: &str) -> Option<String> {
    let (directory, file) = path.split_once("/src/")?;
    let section = page.split("## 10. ").nth(1).unwrap();
    let lines = section.split(&format!("- `{directory}/src/`: ")).nth(1)?;
    let lines = lines.split("\n- ").next().unwrap().replace("\n  ", " ");
    let prefix = id.split('-').next().unwrap();
    let is_listed = lines.contains(&format!("{prefix} `{file}`"));
    (!is_listed).then(|| format!("ARCHITECTURE.md does not list {prefix} of {path}"))
}

/// Section 8 of the page has the order of locks.
#[test]
fn the_page_lists_all_locks_in_their_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let list = page.split("## 8. ").nth(1).unwrap().split("```").nth(1).unwrap();
    let word = |word: &str| word.trim().to_owned();
    let is_name = |word: &&str| word.starts_with(char::is_uppercase);
    let listed: Vec<String> = list.split_whitespace().filter(is_name).map(word).collect();
    let source = fs::read_to_string(root.join("crates/sync/src/rank.rs")).unwrap();
    let ranks = source.split("ranks! {").nth(1).unwrap().split("\n}").next().unwrap();
    let ranks = ranks.lines().filter_map(|line| line.trim().strip_suffix(','));
    let ranks: Vec<String> = ranks.filter(|name| !name.contains(' ')).map(word).collect();
    assert!(ranks.len() > 50, "ranks are not where this test looks for them");
    assert_eq!(listed, ranks);
}

/// The id that a line defines. In the head of a Rust file such a line is `//! PREFIX-Xn  text`, in
/// a page it is an item of a list, in a script a comment.
fn definition(line: &str) -> Option<&str> {
    let line = ["//! ", "- ", "# "].iter().find_map(|start| line.strip_prefix(start))?;
    let (id, _) = line.split_once("  ")?;
    is_id(id).then_some(id)
}

/// Ids of the line that no file defines and, in a comment of a Rust file, ids without a prefix.
fn wrong_ids(path: &Path, line: &str, defined: &BTreeMap<&str, &Path>) -> Vec<String> {
    let is_comment = has_extension(path, "rs") && line.trim_start().starts_with("//");
    let ends_word = |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_';
    let wrong = |word: &str| match is_id(word) {
        true if !defined.contains_key(word) => Some(format!("no file defines {word}")),
        false if is_comment && is_bare(word) => Some(format!("{word} has no prefix")),
        _ => None,
    };
    line.split(ends_word).filter_map(wrong).collect()
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension == wanted)
}

/// Whether a word is written like META-K1.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(prefix, number)| {
        let is_short = (3..=8).contains(&prefix.len());
        is_short && prefix.bytes().all(|b| b.is_ascii_uppercase()) && is_number(number)
    })
}

/// Whether a word is an id without a prefix. Rules (R) and rules of speed (P) have none.
fn is_bare(word: &str) -> bool {
    is_number(word) && !word.starts_with(['R', 'P'])
}

/// Whether a word is a letter and one or two digits.
fn is_number(word: &str) -> bool {
    let (letter, digits) = word.split_at_checked(1).unwrap_or_default();
    letter.bytes().all(|b| b.is_ascii_uppercase())
        && (1..=2).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_digit())
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
        } else if matches!(extension, Some("rs" | "sh" | "py" | "c" | "toml" | "md")) {
            files.push(path);
        }
    }
}

fn complaints(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let is_rust = has_extension(path, "rs");
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
