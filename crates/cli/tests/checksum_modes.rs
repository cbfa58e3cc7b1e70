//! Checksum modes, as `property`, `info` and `debug extents` show them.

#![allow(clippy::disallowed_methods, reason = "it runs the program")]

mod site;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::{Value, json};
use site::{PROGRAM, Site};

const MODES: [&str; 4] = ["item", "guard", "offload", "none"];
const WITH_TUPLES: [&str; 4] = ["--size", "128M", "--pi", "4096+16:64b"];

/// The text that the program prints for people.
#[track_caller]
fn text(arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A directory with this mode.
fn directory(site: &Site, mode: &str) -> String {
    let path = site.at(mode);
    fs::create_dir_all(&path).unwrap();
    site.done(&["property", "set", &path, "checksum", mode]);
    path
}

/// The mode that new extents get, by the mode of their file.
fn in_effect(info: &Value) -> Vec<&str> {
    MODES.map(|mode| info["checksum_modes"][mode]["new_extents"].as_str().unwrap()).to_vec()
}

/// A file of one MiB in `directory`; its number.
fn file(directory: &str) -> String {
    let path = format!("{directory}/file");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    fs::metadata(path).unwrap().ino().to_string()
}

#[test]
fn debug_extents_shows_the_mode_and_the_birth_of_each_extent() {
    let Some(site) = Site::made(&WITH_TUPLES, &[]) else { return };
    site.subvolume("offload");
    let files = MODES.map(|mode| (mode, file(&directory(&site, mode))));
    site.unmount();
    for (mode, inode) in files {
        let arguments = ["debug", "extents", &site.pool(), "--inode", &inode];
        let shown = site.done(&arguments);
        assert_eq!(shown["damage"], json!([]));
        let extents = shown["extents"].as_array().unwrap();
        let blocks = extents.iter().map(|extent| extent["blocks"].as_u64().unwrap());
        assert_eq!(blocks.sum::<u64>(), 256, "{shown}");
        for extent in extents {
            assert_eq!(extent["checksum"], mode, "{shown}");
            let has_birth = extent["birth"].as_u64().is_some_and(|birth| birth > 0);
            assert_eq!(has_birth, ["guard", "offload"].contains(&mode), "{shown}");
        }
        let text = text(&arguments);
        let birth = extents[0]["birth"].as_u64().map_or("-".to_owned(), |it| it.to_string());
        let ends = |line: &str| line.split_whitespace().rev().take(2).eq([&*birth, mode]);
        assert!(text.lines().any(ends), "{text}");
    }
    let absent = (1_u64 << 40).to_string();
    let arguments = ["debug", "extents", &site.pool(), "--inode", &absent];
    site.refused(&arguments, "ENOENT", "no subvolume with a file of number");
    let all = site.done(&["debug", "extents", &site.pool()]);
    let all = all["extents"].as_array().unwrap();
    assert!(MODES.iter().all(|mode| all.iter().any(|extent| extent["checksum"] == *mode)));
}

#[test]
fn without_tuples_the_program_says_that_a_mode_is_not_in_effect() {
    let Some(site) = Site::mounted(&[]) else { return };
    let info = site.done(&["info", &site.at("")]);
    assert_eq!(in_effect(&info), ["item", "item", "item", "none"]);
    let shown = text(&["info", &site.at("")]);
    let row = |line: &str| line.split_whitespace().eq(["guard", "item"]);
    assert!(shown.lines().any(row), "{shown}");

    for mode in MODES {
        let path = site.at(mode);
        fs::create_dir(&path).unwrap();
        let note = text(&["property", "set", &path, "checksum", mode]);
        let get = site.done(&["property", "get", &path, "checksum"]);
        let list = text(&["property", "list", &path]);
        if ["item", "none"].contains(&mode) {
            assert_eq!((note, get), (String::new(), json!({ "checksum": mode })));
            assert_eq!(list, format!("checksum={mode}\n"));
        } else {
            let says = format!("new extents have item instead of {mode}");
            assert!(note.contains("no protection information") && note.contains(&says), "{note}");
            assert_eq!(get, json!({ "checksum": mode, "checksum_in_effect": "item" }));
            assert_eq!(list, format!("checksum={mode}\nchecksum_in_effect=item\n"));
        }
    }
    let inode = file(&site.at("guard"));
    site.unmount();
    let shown = site.done(&["debug", "extents", &site.pool(), "--inode", &inode]);
    let mut modes = shown["extents"].as_array().unwrap().iter().map(|it| &it["checksum"]);
    assert!(modes.all(|mode| mode == "item"), "{shown}");
}

#[test]
fn with_tuples_each_mode_is_in_effect() {
    let Some(site) = Site::made(&WITH_TUPLES, &[]) else { return };
    let info = site.done(&["info", &site.at("")]);
    assert_eq!(in_effect(&info), MODES);
    assert_eq!(
        info["refused_guards"],
        json!({ "0": { "changed_on_the_way": 0, "changed_in_memory": 0 } })
    );
    for mode in MODES {
        let path = site.at(mode);
        fs::create_dir(&path).unwrap();
        assert_eq!(text(&["property", "set", &path, "checksum", mode]), "");
        let get = site.done(&["property", "get", &path, "checksum"]);
        assert_eq!(get, json!({ "checksum": mode }));
    }
    site.unmount();
    assert_eq!(in_effect(&site.done(&["info", &site.pool()])), MODES, "not mounted");
}
