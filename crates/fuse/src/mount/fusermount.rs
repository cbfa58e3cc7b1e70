//! Mounting as an ordinary user, through the setuid program fusermount3.
//!
//! It checks the user's rights, mounts, and sends the device back through a socket. The socket
//! is its standard input, so that no other descriptor of ours has to be inherited.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::error::MountError;
use super::options::MountOptions;

const PROGRAM: &str = "fusermount3";

pub(super) fn mount(
    mount_point: &Path,
    fsname: &str,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    let failed = |source: std::io::Error| MountError::Io { what: "a socket", source };
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|error| failed(error.into()))?;
    let mut command = Command::new(PROGRAM);
    command
        .arg("-o")
        .arg(options.helper_data(fsname))
        .arg("--")
        .arg(mount_point)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs));
    let child = start(&mut command)?;
    drop(command);
    let device = receive(&ours).map_err(failed)?;
    let reason = finish(child)?;
    device.ok_or_else(|| refusal(mount_point, reason.unwrap_or_default()))
}

pub(super) fn unmount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mount_point).stdin(Stdio::null());
    match finish(start(&mut command)?)? {
        None => Ok(()),
        Some(reason) => Err(refusal(mount_point, reason)),
    }
}

fn start(command: &mut Command) -> Result<Child, MountError> {
    command.stdout(Stdio::null()).stderr(Stdio::piped()).env("LC_ALL", "C");
    command.spawn().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::Io { what: PROGRAM, source },
    })
}

/// The program's message if it failed.
fn finish(mut child: Child) -> Result<Option<String>, MountError> {
    let failed = |source| MountError::Io { what: PROGRAM, source };
    let mut reason = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut reason).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    Ok((!status.success()).then(|| reason.trim().to_owned()))
}

/// The descriptor that comes through `socket`, or none if the other end closes it.
fn receive(socket: &OwnedFd) -> std::io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
    })?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

fn refusal(mount_point: &Path, reason: String) -> MountError {
    let path = mount_point.to_owned();
    let has = |text: &str| reason.contains(text);
    if has("user_allow_other") {
        MountError::AllowOther
    } else if has("Device or resource busy") {
        MountError::Busy { path }
    } else if has("device not found") || has("modprobe fuse") {
        MountError::NoDevice
    } else if has("failed to open /dev/fuse: Permission denied") {
        MountError::DeviceForbidden { user: "this user" }
    } else if has("Permission denied")
        || has("Operation not permitted")
        || has("not permitted")
        || has("no write access")
        || has("not owned by user")
    {
        MountError::Permission { path, reason }
    } else if has("not found in /etc/mtab") || has("not mounted") || has("Invalid argument") {
        MountError::NotMounted { path }
    } else {
        MountError::Helper { reason }
    }
}
