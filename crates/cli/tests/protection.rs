//! Pools on namespaces with protection information, by the program.

#![allow(clippy::disallowed_methods, reason = "it looks at processes from outside")]

mod site;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Output;

use copyhold_harness::{Place, Program, needs};
use serde_json::Value;
use site::{PROGRAM, Site, worked};

fn create(arguments: &[&str]) -> Output {
    let arguments = [&["create"], arguments].concat();
    worked(Program::at(PROGRAM).ask(&arguments, &[]))
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A pool in a new file, by the program.
fn made(place: &Place, arguments: &[&str]) -> String {
    let image = place.image().to_str().unwrap().to_owned();
    let output = create(&[&[&image, "--size", "64M"], arguments].concat());
    assert!(output.status.success(), "{}", message(&output));
    image
}

fn shown(arguments: &[&str]) -> Value {
    serde_json::from_str(&worked(Program::at(PROGRAM).run(arguments, &[]))).unwrap()
}

fn flip(image: &str, at: u64) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn info_and_debug_show_the_protection_and_its_damage() {
    let place = worked(Place::new(&std::env::temp_dir(), "copyhold-"));
    let image = made(&place, &["--pi", "512+16:64b"]);
    let format = "512+16:64b:type2:last";
    assert_eq!(shown(&["info", &image])["protection"], format);
    assert_eq!(shown(&["debug", "labels", &image])["protection"], format);
    let debug = || shown(&["debug", "protection", &image, "--block", "0"]);
    let good = debug();
    let headers = good["headers"].as_array().unwrap();
    assert!(headers.iter().all(|header| header["format"] == format && header["state"] == "good"));
    let tuples = good["tuples"].as_array().unwrap();
    assert_eq!(tuples.len(), 8, "the label has eight blocks of 512 bytes");
    assert!(tuples.iter().all(|tuple| tuple["state"] == "guard matches"), "{good}");
    let unwritten = shown(&["debug", "protection", &image, "--block", "9000"]);
    assert_eq!(unwritten["tuples"][3]["state"], "escape: nothing is checked");

    let last = headers[1]["at"].as_u64().unwrap() * 4096;
    let tuple = &tuples[3];
    flip(&image, last + 200);
    flip(&image, tuple["at"].as_u64().unwrap() * 4096 + tuple["byte"].as_u64().unwrap());
    let damaged = debug();
    assert!(damaged["headers"][1]["state"].as_str().unwrap().contains("damaged"), "{damaged}");
    assert_eq!(damaged["tuples"][3]["state"], "guard differs");
    assert_eq!(damaged["tuples"][4], tuples[4]);
    // One header is enough, and the label's tuple is not compared.
    assert_eq!(shown(&["info", &image])["protection"], format);
}

#[test]
fn a_copy_without_its_tuples_is_refused_and_says_why() {
    let place = worked(Place::new(&std::env::temp_dir(), "copyhold-"));
    let image = made(&place, &["--pi", "4096+16:64b"]);
    let data = shown(&["info", &image])["size_bytes"].as_u64().unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    let refused = |says: &str| {
        for verb in ["info", "check"] {
            let output = worked(Program::at(PROGRAM).ask(&[verb, &image], &[]));
            assert!(!output.status.success());
            assert!(message(&output).contains(says), "{verb}: {}", message(&output));
        }
        assert!(shown(&["debug", "labels", &image])["protection"].is_string());
    };
    file.set_len((64 << 20) + (1 << 20)).unwrap();
    refused("if the file was extended, restore its size");
    file.set_len(data).unwrap();
    refused("the file was cut, or is a copy of the data alone");
}

#[test]
fn files_are_exported_although_the_first_label_is_damaged() {
    if !needs::are_met() {
        return;
    }
    let create = ["--size", "64M", "--pi", "512+64:64b"];
    let Some(site) = Site::made(&create, &[]) else { return };
    fs::write(site.path("file"), b"content").unwrap();
    site.unmount();
    flip(&site.pool(), 100);
    let listed =
        worked(Program::at(PROGRAM).run(&["debug", "export", "--list", &site.pool()], &[]));
    assert!(listed.contains("file"), "{listed}");
    assert!(listed.contains("label in block 0"), "{listed}");
}

/// The pool's file with each block that is one of `content` damaged.
fn damage(site: &Site, content: &[u8]) -> usize {
    let mut image = fs::read(site.pool()).unwrap();
    let mut damaged = 0;
    for block in image.chunks_exact_mut(4096).filter(|block| block[..] == content[..4096]) {
        block[77] ^= 1;
        damaged += 1;
    }
    fs::write(site.pool(), image).unwrap();
    damaged
}

/// Where the last two blocks of a file begin.
fn headers_of(image: &str) -> [u64; 2] {
    let end = fs::metadata(image).unwrap().len();
    [end - 2 * 4096, end - 4096]
}

fn zero_block(image: &str, at: u64) {
    File::options().write(true).open(image).unwrap().write_all_at(&[0; 4096], at).unwrap();
}

#[test]
fn a_bad_header_is_reported_and_written_again_by_a_repair() {
    let place = worked(Place::new(&std::env::temp_dir(), "copyhold-"));
    for format in ["4096+16:64b", "512+8:16b"] {
        let image = made(&place, &["--force", "--pi", format]);
        let whole = fs::read(&image).unwrap();
        for at in headers_of(&image) {
            for damage in [zero_block as fn(&str, u64), flip] {
                damage(&image, at);
                let output = worked(Program::at(PROGRAM).ask(&["check", &image, "--json"], &[]));
                assert_eq!(output.status.code(), Some(3), "{format}");
                let found: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(found["findings"][0]["kind"], "header-copy", "{found}");
                assert_eq!(found["findings"].as_array().unwrap().len(), 1, "{found}");
                let repaired = shown(&["check", &image, "--repair", "--json"]);
                assert_eq!(repaired["headers"], serde_json::json!([at / 4096]));
                assert!(fs::read(&image).unwrap() == whole, "{format}");
            }
        }
    }
}

#[test]
fn lost_headers_are_made_from_the_label_where_its_tuples_are() {
    let place = worked(Place::new(&std::env::temp_dir(), "copyhold-"));
    for options in [&["--pi", "4096+16:64b"][..], &["--pi", "512+64:32b:type3:first"]] {
        let image = made(&place, &[&["--force"], options].concat());
        let whole = fs::read(&image).unwrap();
        let lose = || headers_of(&image).into_iter().for_each(|at| zero_block(&image, at));
        let repair = || worked(Program::at(PROGRAM).ask(&["check", &image, "--repair"], &[]));
        lose();
        let refused = worked(Program::at(PROGRAM).ask(&["check", &image], &[]));
        assert!(message(&refused).contains("copyhold check --repair"), "{}", message(&refused));
        let repaired = shown(&["check", &image, "--repair"]);
        let blocks = headers_of(&image).map(|at| at / 4096);
        assert_eq!(repaired["headers"], serde_json::json!(blocks));
        assert!(fs::read(&image).unwrap() == whole, "{options:?}");

        // Of another size the tuples would be in another place, or have no room.
        let file = File::options().write(true).open(&image).unwrap();
        let (longer, shorter) = ((64 << 20) + (1 << 20), (64 << 20) - 8192);
        for (size, says) in [(longer, "it is not made anew"), (shorter, "the file was cut")] {
            fs::write(&image, &whole).unwrap();
            file.set_len(size).unwrap();
            lose();
            let before = fs::read(&image).unwrap();
            let output = repair();
            assert!(!output.status.success());
            assert!(message(&output).contains(says), "{}", message(&output));
            assert!(fs::read(&image).unwrap() == before, "a refusal changes nothing");
        }
    }
}

#[test]
fn a_repair_that_fails_later_tells_the_headers_that_it_has_written() {
    let place = worked(Place::new(&std::env::temp_dir(), "copyhold-"));
    let image = made(&place, &["--pi", "4096+16:64b"]);
    // Without its uberblocks the pool is not opened.
    let end = shown(&["info", &image])["size_bytes"].as_u64().unwrap();
    for area in [0, end - 64 * 4096] {
        (1..64).for_each(|nth| zero_block(&image, area + nth * 4096));
    }
    let [first, _] = headers_of(&image);
    zero_block(&image, first);
    let output = worked(Program::at(PROGRAM).ask(&["check", &image, "--repair"], &[]));
    assert!(!output.status.success());
    let says = format!("were written again in the blocks [{}]; then: ", first / 4096);
    assert!(message(&output).contains(&says), "{}", message(&output));
}

#[test]
fn a_pool_without_protection_information_gets_no_header_by_a_repair() {
    let place = worked(Place::new(&std::env::temp_dir(), "copyhold-"));
    let image = made(&place, &[]);
    let whole = fs::read(&image).unwrap();
    shown(&["check", &image, "--repair", "--json"]);
    assert!(fs::read(&image).unwrap() == whole);
}

/// The files of each place, as the independent reader gives them; `None`: some of it is lost.
fn exported(site: &Site, places: &[&str]) -> Vec<Option<Vec<u8>>> {
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("files");
    let arguments = ["debug", "export", &site.pool(), to.to_str().unwrap()];
    let output = worked(Program::at(PROGRAM).ask(&arguments, &[]));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let lost = |place: &&str| shown.contains(&format!("{{\"path\":\"{place}/file\",\"lost\""));
    let has_lost = places.iter().any(&lost);
    assert_eq!(output.status.code(), Some(if has_lost { 3 } else { 0 }), "{shown}");
    let content = |place: &&str| fs::read(to.join(place).join("file")).unwrap();
    places.iter().map(|place| (!lost(place)).then(|| content(place))).collect()
}

/// The files of each place, as a mount gives them; `None`: an error.
fn mounted(site: &Site, places: &[&str]) -> Vec<Option<Vec<u8>>> {
    site.mount(&[]);
    let read = |place: &&str| fs::read(site.path(&format!("{place}/file"))).ok();
    let files = places.iter().map(read).collect();
    site.unmount();
    files
}

#[test]
fn the_independent_reader_and_the_engine_find_the_same_damage() {
    let places = ["item", "guard", "offload", "none"];
    let content: Vec<u8> = (0..300_000_u32).map(|n| (n >> 8) as u8 ^ (n * 7) as u8).collect();
    let of = |place: &str| [place.as_bytes(), &content].concat();
    for format in ["4096+16:64b", "512+8:16b", "4096+64:32b:type3:first"] {
        let Some(site) = Site::made(&["--size", "64M", "--pi", format], &[]) else { return };
        for place in places {
            fs::create_dir(site.path(place)).unwrap();
            site.done(&["property", "set", &site.at(place), "checksum", place]);
            fs::write(site.path(&format!("{place}/file")), of(place)).unwrap();
        }
        site.unmount();
        let whole = fs::read(site.pool()).unwrap();
        let all: Vec<_> = places.iter().map(|place| Some(of(place))).collect();
        assert!(exported(&site, &places) == all, "{format}");
        assert!(mounted(&site, &places) == all, "{format}");

        let lost = |files: Vec<Option<Vec<u8>>>| -> [bool; 4] {
            std::array::from_fn(|nth| files[nth].is_none())
        };
        let both = || [lost(exported(&site, &places)), lost(mounted(&site, &places))];
        // A bit of each file.
        for place in places {
            assert_eq!(damage(&site, &of(place)), 1, "{place}");
        }
        assert_eq!(both(), [[true, true, true, false]; 2], "{format}");
        // A bit of a tuple of each file, which counts where the checksum is there.
        fs::write(site.pool(), &whole).unwrap();
        for place in places {
            let mut blocks = whole.chunks_exact(4096);
            let block = blocks.position(|block| block[..] == of(place)[..4096]).unwrap();
            let shown =
                shown(&["debug", "protection", &site.pool(), "--block", &block.to_string()]);
            let tuple = &shown["tuples"][0];
            let at = tuple["at"].as_u64().unwrap() * 4096 + tuple["byte"].as_u64().unwrap();
            flip(&site.pool(), at);
        }
        assert_eq!(both(), [[false, true, true, false]; 2], "{format}");
        // Without headers, the tuples are where the label and the size say.
        fs::write(site.pool(), &whole).unwrap();
        damage(&site, &of("guard"));
        headers_of(&site.pool()).into_iter().for_each(|at| zero_block(&site.pool(), at));
        assert_eq!(lost(exported(&site, &places)), [false, true, false, false], "{format}");
    }
}
