//! Turning simple quotas on.
//!
//! btrfs-progs know `quota enable --simple` from 6.7 on only; the kernel's ioctl is asked directly.
#![allow(unsafe_code)]

use std::fs::File;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::error::{BenchError, On};
use crate::target::{Kind, Target, run};

/// `struct btrfs_ioctl_quota_ctl_args`.
#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

const QUOTA_CONTROL: Opcode = opcode::read_write::<QuotaControl>(0x94, 40);
const ENABLE_SIMPLE: u64 = 4;

pub(crate) fn simple_quotas(target: &Target<'_>) -> Result<(), BenchError> {
    match target.kind() {
        Kind::Copyhold => {
            let mut enable = target.copyhold();
            run(enable.args(["quota", "enable", "--simple"]).arg(target.directory())).map(drop)
        }
        Kind::Btrfs => {
            let root = File::open(target.directory()).on("the mount")?;
            let mut control = QuotaControl { command: ENABLE_SIMPLE, status: 0 };
            // SAFETY: the number was made of the structure's size, and the kernel keeps no pointer
            // to it.
            unsafe { ioctl(&root, Updater::<QUOTA_CONTROL, _>::new(&mut control)) }
                .on("enabling simple quotas")
        }
        Kind::Ext4 | Kind::Xfs | Kind::Null | Kind::Plain => {
            unreachable!("there are no modes for it")
        }
    }
}
