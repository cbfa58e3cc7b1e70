//! The requests of a kernel to a mount: in any order, with any content, answered or not before the
//! next one comes. Each valid request is answered; then the pool is closed, and check finds
//! nothing.

use copyhold_fuse::protocol::{Opcode, wire};
use zerocopy::IntoBytes;

use crate::input::Input;

mod begin;
mod served;

pub(crate) use begin::begin;
pub(crate) use served::Served;

/// More requests in one input show nothing new.
const REQUESTS_MAX: usize = 64;
/// Steps of the machine for a request that is not waited for.
const A_FEW: u64 = 8;

/// How one request is made; see [`ask`].
mod how {
    pub(super) const RAW: u8 = 1;
    pub(super) const RAW_LENGTH: u8 = 2;
    pub(super) const NAMES_NODE: u8 = 4;
    pub(super) const LONG: u8 = 8;
    pub(super) const HURRIED: u8 = 16;
    pub(super) const AT_ONCE: u8 = 32;
}

pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let agreed = match input.byte() {
        0 => Some(Served::usual()),
        _ => Served::start(input.take(104)),
    };
    let Some(mut served) = agreed else { return };
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        ask(&mut served, &mut input);
    }
    served.end();
}

/// One request. Its header is what an operation, a node and the length make, or any bytes.
fn ask(served: &mut Served, input: &mut Input<'_>) {
    let flags = input.byte();
    let opcode = Opcode::ALL[usize::from(input.byte()) % Opcode::ALL.len()];
    let node = served.node(input.byte());
    let len = if flags & how::LONG != 0 { input.word() } else { input.byte().into() };
    let mut args = input.take(len).to_vec();
    if flags & how::NAMES_NODE != 0 {
        let at = match opcode {
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => 16,
            _ => 0,
        };
        if let Some(place) = args.get_mut(at..at + 8) {
            let named = served.node(place[0]);
            place.copy_from_slice(&named.to_ne_bytes());
        }
    }
    if flags & how::RAW != 0 {
        let mut header = args.split_off(args.len().min(4));
        std::mem::swap(&mut header, &mut args);
        let len = (args.len() + header.len()) as u32;
        if flags & how::RAW_LENGTH == 0 && header.len() == 4 {
            header.copy_from_slice(&len.to_ne_bytes());
        }
        served.send(&[&header, &args]);
    } else {
        served.request(opcode, node, &args);
    }
    match flags {
        _ if flags & how::AT_ONCE != 0 => {}
        _ if flags & how::HURRIED != 0 => served.go_on(A_FEW),
        _ => served.settle(),
    }
}

/// The header of a request.
fn header(opcode: Opcode, unique: u64, node: u64, args: usize) -> Vec<u8> {
    let len = (size_of::<wire::InHeader>() + args) as u32;
    let header = wire::InHeader {
        len,
        opcode: opcode as u32,
        unique,
        nodeid: node,
        pid: 1,
        ..Default::default()
    };
    header.as_bytes().to_vec()
}
