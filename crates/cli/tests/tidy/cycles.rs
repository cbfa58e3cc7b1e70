//! Import cycles between the modules of a crate.
//!
//! A module is a file of `src`. It depends on another one where a path in it, of an import or in
//! code, leads there: `crate::a::B`, `super::B`, `self::a::B`, and `a::B` where `a` is a module
//! below. The longest prefix that is a module counts, so that a name which the root exports again
//! leads to the root. A `mod a;` is no dependency, nor is a `pub use a::B` that only shows a name
//! of a module below. Tests do not count.
//!
//! A module is in a cycle if its dependencies lead back to it. It can only be understood together
//! with the others of the cycle, as if they were one file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter;
use std::path::Path;

/// Most modules in cycles by crate; the others have none. The numbers only fall.
const CYCLIC_MAX: [(&str, usize); 8] = [
    ("check", 8),
    ("cli", 2),
    ("fs", 3),
    ("pool", 4),
    ("sim", 13),
    ("space", 8),
    ("table", 6),
    ("volume", 10),
];

/// The text of each module of a crate, by its path. The root's is empty.
type Texts = BTreeMap<String, String>;

#[test]
fn modules_in_import_cycles_only_become_fewer() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut total, mut modules, mut grown) = (0, 0, Vec::new());
    for entry in fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let programs = fs::read_dir(path.join("src/bin")).into_iter().flatten();
        let roots = programs.map(|program| program.unwrap().path()).chain([path.join("src")]);
        let texts: Vec<Texts> = roots.map(|root| texts(&root)).collect();
        let cyclic: Vec<&str> = texts.iter().flat_map(cyclic).collect();
        let most = CYCLIC_MAX.iter().find(|(of, _)| *of == name).map_or(0, |(_, most)| *most);
        if cyclic.len() > most {
            let count = cyclic.len();
            grown.push(format!("{name}: {count} modules in cycles, at most {most}: {cyclic:?}"));
        }
        total += cyclic.len();
        modules += texts.iter().map(Texts::len).sum::<usize>();
    }
    println!("{total} of {modules} modules are in import cycles");
    assert!(modules > 300, "the crates are not where this test looks for them");
    assert!(grown.is_empty(), "\n{}", grown.join("\n"));
}

/// The modules of the crate, or of the program, whose root is in `source`.
fn texts(source: &Path) -> Texts {
    let mut files = Vec::new();
    super::collect(source, &mut files);
    files.retain(|file| super::has_extension(file, "rs"));
    let module = |file: &Path| {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        let names: Vec<&str> = path.iter().map(|name| name.to_str().unwrap()).collect();
        let is_of_others = names.contains(&"tests") || names[0] == "bin";
        (!is_of_others).then(|| match names[..] {
            ["lib"] => String::new(),
            // A program that is not the root of a crate only calls its library.
            ["main"] if source.join("lib.rs").exists() => "main".into(),
            ["main"] => String::new(),
            [ref above @ .., "mod"] => above.join("::"),
            ref names => names.join("::"),
        })
    };
    let texts = files.iter().filter_map(|file| Some((module(file)?, file)));
    texts.map(|(module, file)| (module, fs::read_to_string(file).unwrap())).collect()
}

/// The modules that depend on themselves through others.
fn cyclic(texts: &Texts) -> Vec<&str> {
    let edges: BTreeMap<&str, BTreeSet<&str>> =
        texts.iter().map(|(module, text)| (&**module, dependencies(module, text, texts))).collect();
    let leads_back = |start: &str| {
        let (mut seen, mut ahead) = (BTreeSet::new(), vec![start]);
        while let Some(module) = ahead.pop() {
            ahead.extend(edges[module].iter().filter(|next| seen.insert(**next)));
        }
        seen.contains(start)
    };
    edges.keys().copied().filter(|module| leads_back(module)).collect()
}

/// The other modules to which paths in `text` lead.
fn dependencies<'t>(module: &str, text: &str, texts: &'t Texts) -> BTreeSet<&'t str> {
    let tokens = tokens(text);
    let mut paths = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_below = texts.contains_key(&child(module, tokens[at]));
        let begins = is_below || matches!(tokens[at], "crate" | "super" | "self");
        let goes_on = tokens[..at].last() == Some(&"::");
        let is_shown = matches!(tokens[..at], [.., "pub" | ")", "use"]);
        let is_shown = is_shown && (is_below || tokens[at] == "self");
        if begins && !goes_on && !is_shown && tokens.get(at + 1) == Some(&"::") {
            at += expand(&tokens[at..], &[], &mut paths);
        } else {
            at += 1;
        }
    }
    let others = paths.iter().map(|path| resolve(module, path, texts));
    others.filter(|other| *other != module).collect()
}

fn child(module: &str, name: &str) -> String {
    if module.is_empty() { name.into() } else { format!("{module}::{name}") }
}

/// Names, `::` and other signs of the code, without comments and tests.
fn tokens(text: &str) -> Vec<&str> {
    let tests = text.find("#[cfg(test)]\nmod tests");
    let tests = tests.or_else(|| text.find("#[cfg(test)]\npub(crate) mod tests"));
    let lines = text[..tests.unwrap_or(text.len())].lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.flat_map(tokens_of_line).collect()
}

fn tokens_of_line(mut rest: &str) -> impl Iterator<Item = &str> {
    iter::from_fn(move || {
        rest = rest.trim_start();
        let len = match rest.find(|c| !is_of_name(c)).unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => rest.chars().next()?.len_utf8(),
            len => len,
        };
        let (token, behind) = rest.split_at(len);
        rest = behind;
        Some(token)
    })
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Adds the path at the start of `tokens` to `found`, or each of those that braces make of it,
/// behind `prefix`. Returns its length.
fn expand<'t>(tokens: &[&'t str], prefix: &[&'t str], found: &mut Vec<Vec<&'t str>>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while tokens[at].starts_with(is_of_name) {
        path.push(tokens[at]);
        at += 1;
        if tokens.get(at) != Some(&"::") {
            break;
        }
        at += 1;
    }
    if at == 0 || tokens[at - 1] != "::" || tokens[at] != "{" {
        found.push(path);
        return at;
    }
    while tokens[at] != "}" {
        // Behind the brace or a comma.
        at += 1;
        if tokens[at] != "}" {
            at += expand(&tokens[at..], &path, found);
        }
        // Another name for it (`as`).
        at += tokens[at..].iter().take_while(|token| !matches!(**token, "," | "}")).count();
    }
    at + 1
}

/// The module that `path` leads to from `module`.
fn resolve<'t>(module: &str, path: &[&str], texts: &'t Texts) -> &'t str {
    let mut at: Vec<&str> = module.split("::").filter(|name| !name.is_empty()).collect();
    for name in path {
        match *name {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            name => at.push(name),
        }
    }
    loop {
        match texts.get_key_value(&at.join("::")) {
            Some((found, _)) => return found,
            None => drop(at.pop().expect("a crate has a root")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(files: &[(&str, &str)]) -> Texts {
        files.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn imports_and_paths_in_code_make_cycles() {
        let texts = crate_of(&[
            (
                "",
                "mod a;\nmod b;\nmod c;\npub use a::A;\npub(crate) use b::{B, inner::Inner};\npub use self::c::C;\n",
            ),
            ("a", "use std::fmt;\nuse crate::{\n    b::{self as other, B},\n    c::C,\n};\n"),
            ("b", "mod inner;\nuse inner::Inner;\nfn b() { inner::make(); }\n"),
            ("b::inner", "fn make() -> super::super::c::C { crate::c::new::<u8>() }\n"),
            ("c", "// use crate::a::A;\npub struct C;\n"),
        ]);
        let of = |module: &str| Vec::from_iter(dependencies(module, &texts[module], &texts));
        assert!(of("").is_empty());
        assert_eq!(of("a"), ["b", "c"]);
        assert_eq!(of("b"), ["b::inner"]);
        assert_eq!(of("b::inner"), ["c"]);
        assert!(cyclic(&texts).is_empty());
        for (text, found) in [
            ("use crate::a::A;\n", vec!["a", "b", "b::inner", "c"]),
            ("fn c() { crate::b::inner::make() }\n", vec!["b::inner", "c"]),
            ("use super::A;\n", vec![]),
            ("#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n", vec![]),
        ] {
            let mut texts = texts.clone();
            texts.insert("c".into(), text.into());
            assert_eq!(cyclic(&texts), found, "{text}");
        }
    }
}
