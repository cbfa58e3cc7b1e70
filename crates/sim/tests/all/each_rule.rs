//! A rule that can be broken on purpose is broken by some test.

use std::path::Path;

use copyhold_sim::Sabotage;

/// All tests of this crate but this one, those under shuttle, and those of the small kernel.
fn tests() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dirs = [here.join("tests/all"), here.join("../../shuttle/tests")];
    let files = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).expect("a directory of tests"));
    let files = files.map(|file| file.expect("a file").path());
    let others = files.filter(|file| file.is_file() && !file.ends_with("each_rule.rs"));
    let kernel = here.join("../serve/src/adapter/kernel.rs");
    others.chain([kernel]).map(|file| std::fs::read_to_string(file).expect("a file")).collect()
}

#[test]
fn each_rule_is_broken_by_a_test() {
    let tests = tests();
    let is_named = |rule: &str| {
        tests.match_indices(rule).any(|(at, name)| {
            let behind = tests[at + name.len()..].chars().next();
            tests[..at].ends_with("::") && !behind.is_some_and(char::is_alphanumeric)
        })
    };
    let rules = Sabotage::all().into_iter().map(Sabotage::name);
    let idle: Vec<String> = rules.filter(|rule| !is_named(rule)).collect();
    assert!(idle.is_empty(), "no test breaks {idle:?}");
}
