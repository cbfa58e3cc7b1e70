//! Each target on what is kept in `fuzz/seeds`, and on a number of changed inputs that follow from
//! a seed: the same ones in each run. `ROUNDS=100000`, `START=7` and
//! `FUZZ=image` for more, others, and one target alone.

#![allow(unsafe_code)] // an allocator that counts
#![allow(clippy::disallowed_methods)] // a test program's arguments and files

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use copyhold_fuzz::mutate::mutated;
use copyhold_fuzz::{TARGETS, Target};

/// Most bytes that one input may take.
const BUDGET: usize = 256 << 20;
/// Then a target is given up.
const WRONG_MAX: usize = 20;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn seeds(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target.name);
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs one input; false, having said so and kept it, when something is wrong with it.
fn passes(target: &Target, what: &str, input: &[u8]) -> bool {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let panicked = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err();
    let taken = MOST.load(Ordering::Relaxed) - before;
    let good = !panicked && taken <= BUDGET;
    if !good {
        let path = std::env::temp_dir().join(format!("copyhold-fuzz-{}-{what}", target.name));
        fs::write(&path, input).unwrap();
        let (path, taken, most) = (path.display(), taken >> 10, BUDGET >> 10);
        eprintln!("{} on {path}: panicked {panicked}, took {taken} of {most} KiB", target.name);
    }
    good
}

/// What is wrong with a target, by names of inputs.
fn exercise(target: &Target) -> Vec<String> {
    let kept = seeds(target);
    let mut inputs: Vec<Vec<u8>> = kept.iter().map(|(_, input)| input.clone()).collect();
    let mut names: Vec<String> = kept.iter().map(|(path, _)| file_name(path)).collect();
    inputs.extend((target.begin)());
    names.resize_with(inputs.len(), || "beginning".into());
    let mut wrong: Vec<String> = names
        .into_iter()
        .zip(&inputs)
        .filter(|(name, input)| !passes(target, name, input))
        .map(|(name, _)| name)
        .collect();
    let start = number("START").unwrap_or(0);
    for round in start..start + number("ROUNDS").unwrap_or(target.rounds) {
        let name = format!("round{round}");
        if !passes(target, &name, &mutated(&inputs, round)) {
            wrong.push(name);
        }
        if wrong.len() >= WRONG_MAX {
            break;
        }
    }
    wrong
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// libFuzzer has them by files of one line, which CI does not build.
#[test]
fn each_target_has_its_shim() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for target in &TARGETS {
        let path = format!("targets/{}.rs", target.name);
        let shim = fs::read_to_string(fuzz.join(&path)).unwrap();
        assert!(shim.contains(&format!("copyhold_fuzz::run(\"{}\", input)", target.name)));
        assert!(manifest.contains(&format!("path = \"{path}\"")), "{path} in the manifest");
    }
    assert_eq!(fs::read_dir(fuzz.join("targets")).unwrap().count(), TARGETS.len());
}

/// One after the other: memory is counted for the whole process.
#[test]
fn any_bytes_are_answered() {
    let only = std::env::var("FUZZ").ok();
    let targets = TARGETS.iter().filter(|target| only.as_ref().is_none_or(|it| it == target.name));
    let wrong: Vec<_> = targets.map(|target| (target.name, exercise(target))).collect();
    assert!(wrong.iter().all(|(_, inputs)| inputs.is_empty()), "{wrong:?}; see above");
}
