//! Snapshots and deletions by one ioctl each, as the programs ask for them.
//!
//! Copyhold: a question in JSON, as the program puts it (`crates/serve/src/wire.rs`). btrfs:
//! `BTRFS_IOC_SNAP_CREATE` and `BTRFS_IOC_SNAP_DESTROY`.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use copyhold_fuse::ask::{self, ask};
use rustix::fs::{XattrFlags, fsetxattr};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use serde_json::{Value, json};

use crate::error::{BenchError, On};
use crate::target::Kind;

/// As in `crates/serve/src/control.rs`.
const CHECKED: &str = "system.copyhold.checked";
const TENANTS: ask::Command = ask::Command::exchanging(b'C', 3, (16 << 10) - 8);

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolumeArguments {
    fd: i64,
    name: [u8; 4088],
}

const SNAP_CREATE: Opcode = opcode::write::<VolumeArguments>(0x94, 1);
const SNAP_DESTROY: Opcode = opcode::write::<VolumeArguments>(0x94, 15);

/// A directory in which snapshots are made and deleted.
pub(crate) struct Control {
    kind: Kind,
    directory: File,
}

impl Control {
    pub(crate) fn open(kind: Kind, directory: &Path) -> Result<Control, BenchError> {
        let directory = File::open(directory).on(directory.display())?;
        Ok(Control { kind, directory })
    }

    /// A writable snapshot of the subvolume whose root `source` is.
    pub(crate) fn snapshot(&self, source: &Path, name: &str) -> Result<(), BenchError> {
        let source = File::open(source).on(source.display())?;
        match self.kind {
            Kind::Copyhold => {
                let source = token(&source)?;
                let name = name.as_bytes();
                self.change(&json!({
                    "ask": "snapshot", "source": source, "name": name, "read_only": false,
                    "groups": [],
                }))
            }
            _ => self.btrfs::<SNAP_CREATE>(source.as_raw_fd(), name),
        }
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), BenchError> {
        match self.kind {
            Kind::Copyhold => {
                self.change(&json!({ "ask": "delete", "name": name.as_bytes(), "heir": null }))
            }
            _ => self.btrfs::<SNAP_DESTROY>(0, name),
        }
    }

    /// Asks what costs nothing; btrfs is not asked.
    pub(super) fn question(&self) -> Result<(), BenchError> {
        match self.kind {
            Kind::Copyhold => put(&self.directory, &json!({ "ask": "room" })).map(drop),
            _ => Ok(()),
        }
    }

    /// Puts a question that changes something, with the proof that the mount permits it.
    fn change(&self, question: &Value) -> Result<(), BenchError> {
        let token = token(&self.directory)?;
        let text = token.as_str().unwrap_or_default();
        fsetxattr(&self.directory, CHECKED, text.as_bytes(), XattrFlags::empty()).on(CHECKED)?;
        let mut asked = question.clone();
        asked["token"] = token;
        put(&self.directory, &asked).map(drop)
    }

    fn btrfs<const COMMAND: Opcode>(&self, fd: RawFd, name: &str) -> Result<(), BenchError> {
        let mut arguments = VolumeArguments { fd: fd.into(), name: [0; 4088] };
        arguments.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: both numbers were made of the structure's size, and the kernel only reads it, a
        // zero behind the name included, while the call lasts.
        unsafe { ioctl(&self.directory, Setter::<COMMAND, _>::new(arguments)) }.on(name)
    }
}

/// Proves that this process has `directory` open.
fn token(directory: &File) -> Result<Value, BenchError> {
    put(directory, &json!({ "ask": "token" }))
}

fn put(directory: &File, question: &Value) -> Result<Value, BenchError> {
    let answer = ask(directory, TENANTS, question.to_string().as_bytes());
    let answer = answer.map_err(|errno| io::Error::from_raw_os_error(errno.code()));
    let told: Value = serde_json::from_slice(&answer.on("asking the daemon")?)
        .map_err(io::Error::from)
        .on("the daemon's answer")?;
    match told.get("error") {
        Some(error) => Err(BenchError::Refused(error.to_string())),
        None => Ok(told["answer"].clone()),
    }
}
