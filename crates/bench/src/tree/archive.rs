//! An archive of made-up source files: the same bytes each time, and nothing to be downloaded.
//!
//! Sizes are spread as those of real trees are: most files are small, some are 64 KiB. Twenty files
//! are in a directory, twenty directories in the one above. The format is ustar: a header of 512
//! bytes, then the file, filled up to 512; two empty blocks end it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{RngCore, SeedableRng};

use crate::error::{BenchError, On};

/// The directory that everything is in.
pub(super) const ROOT: &str = "tree";
/// A word that only some files have …
pub(super) const NEEDLE: &str = "conspicuously";
/// … one of so many.
pub(super) const RARE: u32 = 100;
/// In the mean, not less.
pub(super) const BYTES_A_FILE: u64 = 16 << 10;

const BLOCK: usize = 512;
const WORDS: [&str; 16] = [
    "let", "mut", "return", "if", "else", "match", "self", "buffer", "index", "length", "error",
    "node", "extent", "=", "();", "{",
];

/// Writes the archive.
pub(super) fn write(path: &Path, files: u32) -> Result<(), BenchError> {
    let file = File::create_new(path).on(path.display())?;
    archive(BufWriter::new(file), files).on(path.display())
}

fn archive(mut output: impl Write, files: u32) -> std::io::Result<()> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for index in 0..files {
        let text = source(&mut rng, index);
        output.write_all(&header(&name(index), text.len()))?;
        output.write_all(&text)?;
        output.write_all(&[0; BLOCK][..text.len().next_multiple_of(BLOCK) - text.len()])?;
    }
    output.write_all(&[0; 2 * BLOCK])?;
    output.flush()
}

fn name(index: u32) -> String {
    format!("{ROOT}/part{}/module{}/file{index}.rs", index / 400, index / 20)
}

/// Lines of words, from half a KiB to 64 KiB.
fn source(rng: &mut Xoshiro256PlusPlus, index: u32) -> Vec<u8> {
    let scale = 512 << (rng.next_u64() % 7);
    let size = (scale + rng.next_u64() % scale) as usize;
    let mut text = Vec::with_capacity(size + 16);
    if index.is_multiple_of(RARE) {
        text.extend_from_slice(format!("// {NEEDLE}\n").as_bytes());
    }
    while text.len() < size {
        let random = rng.next_u64();
        for shift in (0..32).step_by(4) {
            text.extend_from_slice(WORDS[(random >> shift) as usize % WORDS.len()].as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(format!("{:08x}\n", random >> 32).as_bytes());
    }
    text
}

/// See `tar.h`: fields at fixed places, numbers in octal, a sum over all bytes.
fn header(name: &str, size: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, field: &[u8]| header[at..at + field.len()].copy_from_slice(field);
    assert!(name.len() <= 100, "names are short");
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"14000000000\0");
    // The sum is taken with blanks in its own place.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_it_and_some_files_have_the_word() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tree.tar");
        write(&path, 450).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(&path).arg("-C").arg(directory.path()).arg("--no-same-owner");
        assert!(tar.status().unwrap().success());
        let read = |index| fs::read_to_string(directory.path().join(name(index))).unwrap();
        let with: Vec<u32> = (0..450).filter(|index| read(*index).contains(NEEDLE)).collect();
        assert_eq!(with, [0, 100, 200, 300, 400]);
        let bytes: usize = (0..450).map(|index| read(index).len()).sum();
        assert!(bytes as u64 / 450 <= BYTES_A_FILE, "{bytes}");
    }

    #[test]
    fn it_is_the_same_each_time() {
        let of = |files| {
            let mut bytes = Vec::new();
            archive(&mut bytes, files).unwrap();
            bytes
        };
        assert_eq!(of(20), of(20));
    }
}
