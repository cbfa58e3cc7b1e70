//! Signatures of other data on a device.
//!
//! The places and magics are those that blkid(8) and wipefs(8) know. Zeros mean nothing here:
//! a device is taken for unused only if its first and last MiB are zero.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::open::{failed, is_block_device};
use crate::DeviceError;

/// How much is looked at, at either end, in bytes.
const LOOK: u64 = 1 << 20;

struct Magic {
    what: &'static str,
    /// From the start; negative from the end.
    at: i64,
    bytes: &'static [u8],
}

const fn magic(what: &'static str, at: i64, bytes: &'static [u8]) -> Magic {
    Magic { what, at, bytes }
}

const EXT: &str = "an ext2, ext3 or ext4 filesystem";
const GPT: &str = "a GPT partition table";
const LVM: &str = "an LVM physical volume";
const RAID: &str = "a member of a Linux RAID";
const SWAP: &str = "swap space";
const ZFS: &str = "a member of a ZFS pool";
const FAT: &str = "a FAT filesystem";

/// The first match is reported, so formats that contain others come before them.
const MAGICS: [Magic; 39] = [
    magic("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    magic("a LUKS encrypted volume", 0x4000, b"SKUL\xba\xbe"),
    magic(LVM, 24, b"LVM2 001"),
    magic(LVM, 512 + 24, b"LVM2 001"),
    magic(LVM, 1024 + 24, b"LVM2 001"),
    magic(LVM, 1536 + 24, b"LVM2 001"),
    magic(RAID, 0, b"\xfc\x4e\x2b\xa9"),
    magic(RAID, 4096, b"\xfc\x4e\x2b\xa9"),
    magic(RAID, -8192, b"\xfc\x4e\x2b\xa9"),
    magic(RAID, -65536, b"\xfc\x4e\x2b\xa9"),
    magic("a btrfs filesystem", 0x10040, b"_BHRfS_M"),
    magic("an XFS filesystem", 0, b"XFSB"),
    magic("a bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    magic("a bcachefs filesystem", 4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9"),
    magic(ZFS, 0x20000, b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
    magic(ZFS, 0x20000, b"\x00\x00\x00\x00\x00\xba\xb1\x0c"),
    magic(ZFS, 0x21000, b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
    magic(ZFS, -0x20000, b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
    magic(EXT, 0x438, b"\x53\xef"),
    magic("an F2FS filesystem", 0x400, b"\x10\x20\xf5\xf2"),
    magic("an EROFS filesystem", 0x400, b"\xe2\xe1\xf5\xe0"),
    magic("a squashfs filesystem", 0, b"hsqs"),
    magic("an NTFS filesystem", 3, b"NTFS    "),
    magic("an exFAT filesystem", 3, b"EXFAT   "),
    magic(FAT, 82, b"FAT32   "),
    magic(FAT, 54, b"FAT16   "),
    magic(FAT, 54, b"FAT12   "),
    magic("a JFS filesystem", 0x8000, b"JFS1"),
    magic("a ReiserFS filesystem", 0x10034, b"ReIsEr"),
    magic("an ISO 9660 filesystem", 0x8001, b"CD001"),
    magic("a UDF filesystem", 0x8001, b"NSR0"),
    magic(SWAP, 4086, b"SWAPSPACE2"),
    magic(SWAP, 4086, b"SWAP-SPACE"),
    magic(GPT, 512, b"EFI PART"),
    magic(GPT, 4096, b"EFI PART"),
    magic(GPT, -512, b"EFI PART"),
    magic(GPT, -4096, b"EFI PART"),
    magic("a QEMU disk image", 0, b"QFI\xfb"),
    magic("an MBR partition table or boot sector", 510, b"\x55\xaa"),
];

/// The kind of data on a file or block device that a user may miss, in words for a message ("an
/// XFS filesystem"); `None` if its first and last MiB are zero.
pub fn probe_signature(path: &Path) -> Result<Option<&'static str>, DeviceError> {
    is_block_device(path)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed(path))?;
    probe(&file).map_err(failed(path))
}

/// As [`probe_signature`], of a file that is open without direct I/O.
pub(super) fn probe(file: impl AsFd) -> rustix::io::Result<Option<&'static str>> {
    // Unlike its metadata, the end of a seek is right for block devices too.
    let bytes = rustix::fs::seek(&file, SeekFrom::End(0))?;
    let (head, tail) = (look(&file, 0, bytes)?, look(&file, bytes.saturating_sub(LOOK), bytes)?);
    Ok(recognise(&head, &tail))
}

/// Reads from an offset on, up to the end.
fn look(file: impl AsFd, from: u64, end: u64) -> rustix::io::Result<Vec<u8>> {
    let mut seen = vec![0; LOOK.min(end - from) as usize];
    let mut filled = 0;
    while filled < seen.len() {
        match rustix::io::pread(&file, &mut seen[filled..], from + filled as u64)? {
            0 => return Err(Errno::IO),
            bytes => filled += bytes,
        }
    }
    Ok(seen)
}

/// The kind of data that begins and ends with these bytes, if there is any.
pub(crate) fn recognise(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let found = MAGICS.iter().find(|magic| magic.matches(head, tail));
    let is_used = || head.iter().chain(tail).any(|byte| *byte != 0);
    found.map(|magic| magic.what).or_else(|| is_used().then_some("data of an unknown kind"))
}

impl Magic {
    fn matches(&self, head: &[u8], tail: &[u8]) -> bool {
        let at = self.at.unsigned_abs() as usize;
        let rest = match self.at {
            0.. => head.get(at..),
            _ => tail.len().checked_sub(at).and_then(|at| tail.get(at..)),
        };
        rest.is_some_and(|rest| rest.starts_with(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_magic_is_recognised_where_it_stands() {
        for magic in &MAGICS {
            let (mut head, mut tail) = (vec![0; LOOK as usize], vec![0; LOOK as usize]);
            let at = magic.at.unsigned_abs() as usize;
            let place =
                if magic.at < 0 { &mut tail[LOOK as usize - at..] } else { &mut head[at..] };
            place[..magic.bytes.len()].copy_from_slice(magic.bytes);
            let found = recognise(&head, &tail).unwrap();
            let alike = MAGICS.iter().any(|m| m.what == found && m.at == magic.at);
            assert!(alike, "{} was taken for {found}", magic.what);
        }
    }

    #[test]
    fn zeros_are_nobodys_and_one_byte_is_somebodys() {
        let mut head = vec![0; LOOK as usize];
        assert_eq!(recognise(&head, &[]), None);
        head[777] = 1;
        assert_eq!(recognise(&head, &[]), Some("data of an unknown kind"));
    }
}
