//! The requests of `copyhold` to the daemon, as they arrive: ioctls on nodes of a mount, most of
//! them with a question about tenants in JSON.

use copyhold_fuse::ask::Command;
use copyhold_fuse::protocol::{Opcode, wire};
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::requests::Served;

const TENANTS: u32 = Command::exchanging(b'C', 3, (16 << 10) - 8).number();
/// Questions are asked by this one; the others come as often as their place is chosen.
const COMMANDS: [u32; 12] = [
    TENANTS,
    Command::bare(b'C', 1).number(),
    Command::answering(b'C', 2, 8192).number(),
    // File flags, version, extended flags, label, trim, shutdown, as in <linux/fs.h>.
    0x8008_6601,
    0x4008_6602,
    0x8008_7601,
    0x801c_581f,
    0x401c_5820,
    0x8100_9431,
    0xc018_5879,
    0x8004_587d,
    TENANTS,
];
const QUESTIONS_MAX: usize = 24;
/// The kernel limits requests to this size.
const ROOM_MAX: u32 = (16 << 10) - 8;

pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut served = Served::usual();
    for _ in 0..QUESTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let command = COMMANDS[usize::from(input.byte()) % COMMANDS.len()];
        let node = served.node(input.byte());
        let room = match input.byte() {
            0 => ROOM_MAX,
            some => u32::from(some) * 16,
        };
        let len = input.word();
        let question = input.take(len);
        let ioctl = wire::IoctlIn {
            cmd: command,
            in_size: question.len() as u32,
            out_size: room,
            ..Default::default()
        };
        served.request(Opcode::Ioctl, node, &[ioctl.as_bytes(), question].concat());
        served.settle();
    }
    served.end();
}

/// One of each question, on the root, on a directory or on a subvolume.
const QUESTIONS: [&str; 26] = [
    r#"{"ask":"create","name":[97,98],"umask":18,"groups":["1/7"]}"#,
    r#"{"ask":"snapshot","source":68719476737,"name":[115],"read_only":true,"groups":[]}"#,
    r#"{"ask":"delete","name":[115,110,97,112],"heir":null}"#,
    r#"{"ask":"delete","name":[115,117,98],"heir":1}"#,
    r#"{"ask":"roll-back","name":[115,117,98],"snapshot":137438953473,"keep":null}"#,
    r#"{"ask":"roll-back","name":[115],"snapshot":137438953473,"keep":{"directory":2,"name":[107]}}"#,
    r#"{"ask":"subvolumes","after":0}"#,
    r#"{"ask":"subvolume"}"#,
    r#"{"ask":"leaving","after":0}"#,
    r#"{"ask":"set-read-only","on":true}"#,
    r#"{"ask":"room"}"#,
    r#"{"ask":"quota-enable","simple":true}"#,
    r#"{"ask":"quota-disable"}"#,
    r#"{"ask":"quota-status"}"#,
    r#"{"ask":"quota-rescan"}"#,
    r#"{"ask":"groups","after":0}"#,
    r#"{"ask":"regroup","change":{"create":{"group":"1/7"}}}"#,
    r#"{"ask":"regroup","change":{"limit":{"group":"0/1","kind":"referenced","limit":10000000}}}"#,
    r#"{"ask":"regroup","change":{"assign":{"child":"0/2","parent":"1/7"}}}"#,
    r#"{"ask":"group-clear-stale"}"#,
    r#"{"ask":"scan","step":"begin"}"#,
    r#"{"ask":"scan","step":{"changes":{"from":137438953473,"at":null}}}"#,
    r#"{"ask":"scan","step":{"homes":{"inodes":[1,2,99]}}}"#,
    r#"{"ask":"scan","step":{"named":{"directory":1,"inodes":[2],"at":[1,16,0]}}}"#,
    r#"{"ask":"scan","step":{"fresh":{"since":0,"at":null}}}"#,
    r#"{"ask":"scan","step":{"weigh":{"exclusive":true,"dropped":false,"at":null}}}"#,
];

fn asked(command: u8, node: u8, question: &[u8]) -> Vec<u8> {
    let len = (question.len() as u16).to_le_bytes();
    [&[command, node, 0], &len[..], question].concat()
}

pub(crate) fn begin() -> Vec<Vec<u8>> {
    // The root, and a subvolume's root.
    let nodes = [0, 12];
    let mut inputs: Vec<Vec<u8>> = QUESTIONS
        .chunks(7)
        .flat_map(|some| {
            nodes.map(|node| some.iter().flat_map(|text| asked(0, node, text.as_bytes())).collect())
        })
        .collect();
    inputs.push((1..11).flat_map(|command| asked(command, 3, &[0; 28])).collect());
    inputs
}
